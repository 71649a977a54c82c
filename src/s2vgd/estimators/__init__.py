"""scikit-learn estimators: tables in, predictions with error bars out.

Everything here is scaling, validation and defaults; the method is in the modules below.
"""

from s2vgd.estimators._classifier import S2VGDClassifier
from s2vgd.estimators._regressor import S2VGDRegressor

__all__ = ["S2VGDClassifier", "S2VGDRegressor"]

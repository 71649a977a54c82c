"""The list of known data sets: files, checksums, licences and notes. Facts only, no code paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from s2vgd.datasets import formats
from s2vgd.datasets.dataset import Task
from s2vgd.datasets.storage import DataFile, Form

_UCI = "https://archive.ics.uci.edu/static/public"
_CC_BY = "CC BY 4.0"


@dataclass(frozen=True)
class Entry:
    """A data set: what there is to say about it, its files, and how they are read.

    `read` is called with one unpacked binary stream for each of `files`, in that order.
    """

    name: str
    task: Task
    n_rows: int
    n_features: int
    licence: str
    source: str
    files: tuple[DataFile, ...]
    read: Callable[..., formats.Table]
    note: str = ""
    n_splits: int = 0
    hidden_units: int = 50


@cache
def entries() -> dict[str, Entry]:
    """Every known data set by name: the embedded ones first, then the others."""
    return {entry.name: entry for entry in (*_embedded(), *_images(), *_tables())}


_BENCHMARK_FACTS = {
    # name: (licence, source, note)
    "boston": (
        "none stated",
        "Harrison & Rubinfeld (1978), StatLib; formerly UCI housing.data",
        "Ethics: column B encodes the racial make-up of a town under the premise that segregation "
        "affects prices; scikit-learn withdrew the set for that reason. Use it only to compare "
        "with published numbers, and say so.",
    ),
    "concrete": (_CC_BY, f"{_UCI}/165/concrete+compressive+strength.zip", "I-Cheng Yeh"),
    "energy": (
        _CC_BY,
        f"{_UCI}/242/energy+efficiency.zip",
        "Heating load only: the benchmark drops the second target, cooling load.",
    ),
    "kin8nm": ("listed as public; none stated", "https://www.openml.org/d/189", "DELVE kin family"),
    "naval": (
        _CC_BY,
        f"{_UCI}/316/condition+based+maintenance+of+naval+propulsion+plants.zip",
        "Features 8 and 11 are constant. The second target, turbine decay, is left out.",
    ),
    "power": (
        _CC_BY,
        f"{_UCI}/294/combined+cycle+power+plant.zip",
        "Rows in the order of sheet 5 of Folds5x2_pp.xlsx, which the standard splits assume.",
    ),
    "protein": (
        _CC_BY,
        f"{_UCI}/265/physicochemical+properties+of+protein+tertiary+structure.zip",
        "CASP.csv with RMSD as the last column.",
    ),
    "wine": (_CC_BY, f"{_UCI}/186/wine+quality.zip", "Red wines only."),
    "yacht": (_CC_BY, f"{_UCI}/243/yacht+hydrodynamics.zip", ""),
}


@cache
def manifest() -> dict[str, dict]:
    """Return the description of the embedded files that is shipped beside them."""
    path = Path(__file__).parent / "embedded" / "manifest.json"
    return json.loads(path.read_text())["datasets"]


def _embedded() -> list[Entry]:
    listed = []
    for name, (licence, source, note) in _BENCHMARK_FACTS.items():
        facts = manifest()[name]
        read = partial(
            formats.read_benchmark,
            columns=facts["column_names"],
            features=facts["features"],
            target=facts["target"],
        )
        listed.append(
            Entry(
                name=name,
                task="regression",
                n_rows=facts["rows"],
                n_features=len(facts["features"]),
                licence=licence,
                source=source,
                files=(_embedded_file(facts),),
                read=read,
                note=note,
                n_splits=facts["n_splits"],
                hidden_units=100 if name == "protein" else 50,
            )
        )
    facts = manifest()["mushroom"]
    mushroom = Entry(
        name="mushroom",
        task="classification",
        n_rows=facts["rows"],
        n_features=sum(facts["levels_observed"][1:]),
        licence=_CC_BY,
        source=f"{_UCI}/73/mushroom.zip",
        files=(_embedded_file(facts),),
        read=partial(formats.read_mushroom, columns=facts["column_names"]),
        note="One-hot over the observed levels, '?' (stalk-root, 2480 rows) being a level.",
    )
    return [*listed, mushroom]


def _embedded_file(facts: dict) -> DataFile:
    form = Form(Path(facts["file"]).name, facts["sha256"])
    return DataFile("", (form,), embedded=True)


def _idx(folder: str, filename: str, sha256: str, *urls: str) -> DataFile:
    return DataFile(folder, (Form(filename, sha256, urls=urls),))


def _images() -> list[Entry]:
    mnist_files = [
        ("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ]
    mnist_mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    fashion_files = [
        ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ]
    fashion_url = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    notmnist_files = [
        ("t10k-images-idx3", "70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7"),
        ("t10k-labels-idx1", "1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b"),
    ]
    notmnist_url = "https://github.com/davidflanagan/notMNIST-to-MNIST/raw/master"
    fashion_classes = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    return [
        Entry(
            name="mnist",
            task="classification",
            n_rows=70_000,
            n_features=784,
            licence="Yann LeCun and Corinna Cortes; commonly stated as CC BY-SA 3.0",
            source=mnist_mirrors[0],
            files=tuple(
                _idx(
                    "mnist",
                    f"{stem}-ubyte.gz",
                    sha256,
                    *(f"{mirror}/{stem}-ubyte.gz" for mirror in mnist_mirrors),
                )
                for stem, sha256 in mnist_files
            ),
            read=partial(formats.read_images, classes=tuple("0123456789"), n_train=60_000),
        ),
        Entry(
            name="fashion-mnist",
            task="classification",
            n_rows=10_000,
            n_features=784,
            licence="MIT",
            source="https://github.com/zalandoresearch/fashion-mnist",
            files=tuple(
                _idx(
                    "ood",
                    f"fashion-mnist-{stem}-ubyte.gz",
                    sha256,
                    f"{fashion_url}/{stem}-ubyte.gz",
                )
                for stem, sha256 in fashion_files
            ),
            read=partial(formats.read_images, classes=fashion_classes),
            note="The test images only: for out-of-distribution tests.",
        ),
        Entry(
            name="notmnist",
            task="classification",
            n_rows=10_000,
            n_features=784,
            licence="none stated for the data; the repository is MIT",
            source="https://github.com/davidflanagan/notMNIST-to-MNIST",
            files=tuple(
                _idx("ood", f"notmnist-{stem}-ubyte.gz", sha256, f"{notmnist_url}/{stem}-ubyte.gz")
                for stem, sha256 in notmnist_files
            ),
            read=partial(formats.read_images, classes=tuple("ABCDEFGHIJ")),
            note="1,000 images a letter, a sample of notMNIST_small: for out-of-distribution "
            "tests. 9,804 of the images are distinct.",
        ),
    ]


def _uci_file(name: str, packed_sha256: str, sha256: str, url: str, member: str = "") -> DataFile:
    """Describe a file that UCI has in a zip archive; it is accepted plain and as ``.xz`` too."""
    archive = Form(url.rsplit("/", 1)[1], sha256, member=member or name, urls=(url,))
    return DataFile("bandit", (Form(f"{name}.xz", packed_sha256), Form(name, sha256), archive))


def _tables() -> list[Entry]:
    covertype = DataFile(
        "covertype",
        (
            Form(
                "covtype.data.xz",
                "aa006c7c3c072d52b4ffec78e1e724ab61cd6ce8caa3ec9bbd49371e75ca92bf",
            ),
            Form(
                "covtype.data.gz",
                "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
                urls=("https://ndownloader.figshare.com/files/5976039",),
            ),
            Form(
                "covtype.data",
                "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
            ),
        ),
    )
    adult_url = f"{_UCI}/2/adult.zip"
    adult = (
        _uci_file(
            "adult.data",
            "03c5722d4eaeaa2962f81284344def3c5150dadc6ddf841fcbb57f233371445c",
            "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            adult_url,
        ),
        _uci_file(
            "adult.test",
            "45248f451a46bace9a234ece542aeadb66ea52e3c078f136d4b2c069cb38b1cd",
            "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            adult_url,
        ),
    )
    shuttle_url = f"{_UCI}/148/statlog+shuttle.zip"
    shuttle = (
        _uci_file(
            "shuttle.trn",
            "ebdd77dd291192b4450a33f5b0bda2d218c061c2aa1cb7f1241b21801fa4d6d5",
            "87b24ee9fb5137e1d417659cf905d84d0e15342bbaa60770f1ae83da1a38200a",
            shuttle_url,
            member="shuttle.trn.Z",
        ),
        _uci_file(
            "shuttle.tst",
            "666923574c8d692c049383955bbb777089cb12cec0316540828d4a4cc6e2fa0d",
            "f776934a628d9b94c482cb058a76ddaa63823e0f74aec065813c9dff3b89d661",
            shuttle_url,
        ),
    )
    year_name = "YearPredictionMSD.txt"
    year_sha256 = "4b6f8e50235b359e01689ae7fb33ad0f89677e9a15f25f3d6259327a6bb927bb"
    year_urls = (
        f"{_UCI}/203/yearpredictionmsd.zip",
        f"https://archive.ics.uci.edu/ml/machine-learning-databases/00203/{year_name}.zip",
    )
    year_archives = (
        Form(url.rsplit("/", 1)[1], year_sha256, member=year_name, urls=(url,)) for url in year_urls
    )
    year = DataFile("year", (Form(year_name, year_sha256), *year_archives))
    return [
        Entry(
            name="covertype",
            task="classification",
            n_rows=581_012,
            n_features=54,
            licence=f"{_CC_BY}; copyright Jock A. Blackard and Colorado State University",
            source=f"{_UCI}/31/covertype.zip",
            files=(covertype,),
            read=formats.read_covertype,
            note="LIBSVM's covtype.binary, used in the SVGD paper, is y == 1 (Lodgepole Pine).",
        ),
        Entry(
            name="adult",
            task="classification",
            n_rows=48_842,
            n_features=108,
            licence=_CC_BY,
            source=adult_url,
            files=adult,
            read=formats.read_adult,
            note="Contains protected attributes (race, sex). '?' is a level of its column.",
        ),
        Entry(
            name="shuttle",
            task="classification",
            n_rows=58_000,
            n_features=9,
            licence=_CC_BY,
            source=shuttle_url,
            files=shuttle,
            read=formats.read_shuttle,
        ),
        Entry(
            name="year",
            task="regression",
            n_rows=515_345,
            n_features=90,
            licence=_CC_BY,
            source=year_urls[0],
            files=(year,),
            read=formats.read_year,
            note="YearPredictionMSD. One fixed split that keeps each artist on one side.",
            hidden_units=100,
        ),
    ]

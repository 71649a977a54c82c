"""The files of the Open Bandit sample (Saito et al., 2020) and their checksums. Facts only.

It is not an entry of the catalogue, being decisions and not a table of inputs and targets;
`s2vgd.bandits.open_bandit` reads it. The package that it comes with is under Apache-2.0.
"""

from __future__ import annotations

from s2vgd.datasets.storage import DataFile, Form

_ADDRESS = "https://raw.githubusercontent.com/st-tech/zr-obp/master/obd"
_SHA256 = {
    # file: (packed, unpacked)
    "random_all": (
        "a30ecf488931129b73570b145d1ec0ba934681a88d681215e1c746d72485901a",
        "7168295b6e0a9eabcf3392320a5dd434e542b68e705d5cd9491499af589812f1",
    ),
    "random_all_item_context": (
        "4ab343f678c56505cbea6ed8d44d5d6737270212bc9945ce817c919b31bdfd66",
        "eba04cc23d5f130a93ff174c5392986882b94c3839433cb8143870eaa6221358",
    ),
    "random_men": (
        "f2b94ef5a8fbd1b6f7c77760e4860561b7230f9cbee77ae67f991460b46e8ae5",
        "ede6d08c6877f99cd3770f7d09e26c738e6aa6de4445ccccfb1356ba5d06b1eb",
    ),
    "random_men_item_context": (
        "833480c308b357f2411c05b8304f54ae3701d5ddd219647b0721e1ea681f3862",
        "6d855c2b7e917d0448d71bbe62c023147495882c0fdc8c41e86fef86abf9fe09",
    ),
    "random_women": (
        "b1f4c3c1bf08629cc02bd6ca45da69a1e9ab412674568459c4f0b0ccf6e69a6c",
        "e65f3bd3beb17664fa69cc129bf7bf852a775f8ffa630506e505fc905315bb34",
    ),
    "random_women_item_context": (
        "d8d7419088fa685706a528505c2e3b385c7b3afd73f775a652fc9bab401fdd41",
        "b1ca4905f97703d196004f2ad4552c1e90c2afad8b50688d333b0d2dc0b33147",
    ),
    "bts_all": (
        "35d07cd84da44a968c6a7eaa2ad81d08119a93accd8335e5877e289c8ef9712c",
        "0ad874e4dbf6902f0845dd478ad8dde5ef6903583d3ffaace78411bdad064106",
    ),
    "bts_all_item_context": (
        "44c85052b2b6733b31e0893e950256322809d2fb9c10aa87883df2cfef23cd70",
        "5d4359ba1cfa3ae88f0f1bae66bd633859fe6323817183632ee57b83539d9153",
    ),
    "bts_men": (
        "770d2f4eef9e858c6411ceafb5a600c8fa18906ed593e49fe8a49c1e63c17679",
        "db6d1f7ed2d591ba521533e45286d4c1fba7fe57a8ad2e80342210335f43c527",
    ),
    "bts_men_item_context": (
        "aaa622847ec2568f7795a9ffb333322e4c1e2b7b539caa3cd345ec30058e1a36",
        "3b411ed6b0471316321a6b93f4f756bb25888eac6218cd71d0b603d41d85732d",
    ),
    "bts_women": (
        "db801b0d19d2d753b03b1f77341c5a88f5a11a3ed0b20d1495108672eb93f8ed",
        "e5d1b49a39b608585a2f3014a3f54970430cd37a495c1b73fceb85cdf428a5b8",
    ),
    "bts_women_item_context": (
        "40374e3ce962ef49c18da03dc82e8bba5bd42fa80c71e85d7d35759e9b165e63",
        "a56295bad066a558eb783055afd9279f5f4e209a4776eafc22151c53f0ac89d4",
    ),
}


def open_bandit_files(policy: str, campaign: str) -> tuple[DataFile, DataFile]:
    """Describe a log of the sample and its table of items.

    Parameters
    ----------
    policy : {"random", "bts"}
    campaign : {"all", "men", "women"}
    """

    def csv(name: str, address: str) -> DataFile:
        packed, unpacked = _SHA256[name]
        url = f"{_ADDRESS}/{policy}/{campaign}/{address}"
        forms = (Form(f"{name}.csv.xz", packed), Form(f"{name}.csv", unpacked, urls=(url,)))
        return DataFile("bandit/open_bandit_sample", forms)

    name = f"{policy}_{campaign}"
    return csv(name, f"{campaign}.csv"), csv(f"{name}_item_context", "item_context.csv")

"""Data sets, who holds them and who is attacked.

    load(name or path) -> Dataset -> pick(...) -> Victims
                                  -> partition(labels, clients) -> every client's places
    GaussianTask().draw(...)             -> Victims

`dataset.py` the images in memory, `pixels.py` their size and channels, `embedded.py` the set that needs no download,
`files.py` npz files, `folder.py` folders of images, `sources.py` where public sets are and how they are converted,
`download.py` fetching, `catalogue.py` names, `shares.py` clients, `victims.py` who is attacked;
`gaussian.py` a task of points whose prior is known exactly.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dosimeter.data.catalogue import Row, available, cache_folder, load
    from dosimeter.data.dataset import Dataset
    from dosimeter.data.files import read_batch, read_npz
    from dosimeter.data.folder import read_folder
    from dosimeter.data.gaussian import GaussianTask
    from dosimeter.data.shares import partition
    from dosimeter.data.sources import SOURCES, Source
    from dosimeter.data.victims import pick, pick_decoys, pick_shadows, places_of, pool_of
else:
    from dosimeter.lazy import importer

    __getattr__ = importer(__name__, __file__)

__all__ = [
    "SOURCES",
    "Dataset",
    "GaussianTask",
    "Row",
    "Source",
    "available",
    "cache_folder",
    "load",
    "partition",
    "pick",
    "pick_decoys",
    "pick_shadows",
    "places_of",
    "pool_of",
    "read_batch",
    "read_folder",
    "read_npz",
]

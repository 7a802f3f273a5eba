"""Images from the data folder: pixels in [0, 1], channels first, with the official test part."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from lzma import LZMAError
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.data.datasets.decoding import decode
from consilience.data.datasets.facts import Facts
from consilience.data.npy import check_npz
from consilience.disk.data_folder import find
from consilience.errors import InputError

FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KINDS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(kind.replace("_", " ") for kind in KINDS.split())  # in the order of their numbers


def mnist(data_dir: str | None = None) -> Dataset:
    """Handwritten digits of 28 × 28 pixels, white on black (LeCun et al. 1998).

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 1 × 28 × 28 pixels, ten classes.

    Raises:
        InputError: The file is missing or damaged.
    """
    return _images("mnist", "mnist.npz", data_dir, tuple(digits), get="mnist")


def fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Pieces of clothing of 28 × 28 pixels, in the form of MNIST (Xiao et al. 2017).

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 1 × 28 × 28 pixels, ten classes.

    Raises:
        InputError: The file is missing or damaged.
    """
    return _images("fashion_mnist", "fashion_mnist.npz", data_dir, FASHION, get="fashion_mnist")


def femnist(data_dir: str | None = None) -> Dataset:
    """Handwritten digits and letters, one site per writer: a part of LEAF's FEMNIST (Caldas et al. 2018).

    Pixels are LEAF's own, black ink (0) on white (1); 1 − x has the polarity of MNIST. Four of the 300 writers have no
    test image.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 1 × 28 × 28 pixels, 62 classes, with 300 natural sites.

    Raises:
        InputError: The file is missing or damaged.
    """
    path = find("emnist62.npz", data_dir)
    arrays = decode(path, _decode)
    return _dataset(
        "femnist",
        arrays,
        tuple(digits + ascii_uppercase + ascii_lowercase),
        site=arrays["client_train"],
        site_test=arrays["client_test"],
        site_names=tuple(str(writer) for writer in _members(path, "writers")["writers"]),
    )


def cifar10(data_dir: str | None = None) -> Dataset:
    """Photographs of ten kinds of things, 32 × 32 pixels in colour (Krizhevsky 2009).

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 3 × 32 × 32 pixels, ten classes.

    Raises:
        InputError: The file is missing or damaged.
    """
    return _images("cifar10", "cifar10.npz", data_dir, CIFAR10, get="cifar10")


def cifar100(data_dir: str | None = None) -> Dataset:
    """A part of CIFAR-100, a hundred kinds of things; its test part was drawn afresh (Krizhevsky 2009).

    180 training and 40 test images of each class: accuracies are close to the official benchmark, not comparable.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 3 × 32 × 32 pixels, a hundred classes.

    Raises:
        InputError: The file is missing or damaged.
    """
    return _images("cifar100", "cifar100.npz", data_dir, CIFAR100)


def svhn(data_dir: str | None = None) -> Dataset:
    """A part of Street View House Numbers, digits of 32 × 32 pixels in colour (Netzer et al. 2011).

    8000 training and 4000 test digits, cut out again by the published recipe: not comparable pixel for pixel.

    Args:
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        A classification of 3 × 32 × 32 pixels, ten classes.

    Raises:
        InputError: The file is missing or damaged.
    """
    return _images("svhn", "svhn.npz", data_dir, tuple(digits))


DATASETS: dict[str, Callable[[str | None], Dataset]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "femnist": femnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
}
FACTS = {
    "mnist": Facts(70000, (1, 28, 28), 10, file="mnist.npz"),
    "fashion_mnist": Facts(70000, (1, 28, 28), 10, file="fashion_mnist.npz"),
    "femnist": Facts(45958, (1, 28, 28), 62, 300, "emnist62.npz"),
    "cifar10": Facts(60000, (3, 32, 32), 10, file="cifar10.npz"),
    "cifar100": Facts(22000, (3, 32, 32), 100, file="cifar100.npz"),
    "svhn": Facts(12000, (3, 32, 32), 10, file="svhn.npz"),
}


def encode_delta(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn colour images into the form that compresses best.

    Args:
        x: Bytes, (N, 3, H, W).

    Returns:
        Planes (3, N, H, W) of green, red − green, blue − green, each the difference to the pixel above and to the left,
        modulo 256.
    """
    red, green, blue = x.transpose(1, 0, 2, 3)
    planes = np.stack([green, red - green, blue - green])
    planes[..., 1:] = np.diff(planes, axis=3)
    planes[..., 1:, :] = np.diff(planes, axis=2)
    return planes


def decode_delta(planes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Turn planes back into the images that `encode_delta` was given, exactly.

    Args:
        planes: What `encode_delta` returned.

    Returns:
        Bytes, (N, 3, H, W).
    """
    summed = np.cumsum(np.cumsum(planes, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    green, red, blue = summed
    return np.stack([red + green, green, blue + green], axis=1)


def _images(
    name: str, file: str, data_dir: str | None, class_names: tuple[str, ...], get: str | None = None
) -> Dataset:
    return _dataset(name, decode(find(file, data_dir, get), _decode), class_names)


def _dataset(name: str, arrays: dict[str, Tensor], class_names: tuple[str, ...], **sites: Any) -> Dataset:
    return Dataset(
        name=name,
        x=arrays["x_train"].float().div_(255),
        y=arrays["y_train"],
        classes=len(class_names),
        x_test=arrays["x_test"].float().div_(255),
        y_test=arrays["y_test"],
        class_names=class_names,
        public=True,
        **sites,
    )


def _decode(path: Path) -> dict[str, Tensor]:
    """Images as bytes (N, channels, H, W), everything else as whole numbers; only what is for training or testing."""
    tensors = {}
    for name, array in _members(path, "_train", "_test").items():
        if name.endswith("_delta"):
            tensors[name.removesuffix("_delta")] = torch.from_numpy(decode_delta(array))
        elif name.startswith("x_"):
            tensors[name] = torch.from_numpy(array).unsqueeze(1)
        else:
            tensors[name] = torch.from_numpy(array.astype(np.int64))
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in tensors]
    if missing:
        raise InputError(f"{path.name} has no {missing[0]}: it is another file of the same name, get the right one.")
    return tensors


def _members(path: Path, *parts: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an archive that have one of the parts in their name."""
    try:
        check_npz(path)
        with np.load(path) as archive:
            return {name: archive[name] for name in archive.files if any(part in name for part in parts)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, LZMAError) as error:
        raise InputError(f"{path.name} cannot be read ({error}): remove it and get it again.") from None

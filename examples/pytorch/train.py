"""A training whose dataset is read through the data tier: each byte from the filesystem once.

The dataset is a directory for each class with a file for each sample, as many are: here raw bytes,
SIZE of them. In every epoch each rank reads other samples than in the one before, in an order of
its own, by the worker processes of PyTorch's DataLoader. Nothing in here knows of copperfs:
DATA_DIR leads through the mount because `copperfs run --env` has led it there (job.sh).

Every rank learns by itself and prints a line of JSON for each epoch. In a real training
DistributedDataParallel goes around the model, and what is said about ranks comes from there.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

EPOCHS = int(os.environ.get("EPOCHS", "3"))
WORKERS = int(os.environ.get("WORKERS", "2"))
BATCH = int(os.environ.get("BATCH", "16"))
SIZE = 3 * 64 * 64


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """The files below a directory; the directory that a file is in is its class."""

    def __init__(self, top: Path) -> None:
        self.classes = sorted(each.name for each in top.iterdir() if each.is_dir())
        self.files = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((top / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, number = self.files[index]
        content = bytearray(path.read_bytes()[:SIZE])
        return torch.frombuffer(content, dtype=torch.uint8).float() / 255 - 0.5, number


def place() -> tuple[int, int]:
    """Rank and number of ranks, as srun, hydra (MPICH, PALS) or Open MPI say; alone: 0 of 1."""
    for rank, size in (
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("PMI_RANK", "PMI_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def main() -> int:
    rank, ranks = place()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Samples(Path(os.environ["DATA_DIR"]))
    sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=WORKERS)
    model = torch.nn.Linear(SIZE, len(data.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # another part of the samples, in another order
        began, samples, losses = time.perf_counter(), 0, 0.0
        for inputs, classes in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), classes)
            loss.backward()
            optimizer.step()
            samples += len(classes)
            losses += loss.item() * len(classes)
        told = {
            "rank": rank, "ranks": ranks, "epoch": epoch, "samples": samples,
            "loss": round(losses / samples, 4), "seconds": round(time.perf_counter() - began, 3),
            "data": str(data.files[0][0]), "torch": torch.__file__,
        }  # fmt: skip
        os.write(1, (json.dumps(told) + "\n").encode())  # all at once: ranks share the output
    return 0


if __name__ == "__main__":
    sys.exit(main())

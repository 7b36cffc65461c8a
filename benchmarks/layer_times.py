"""What each layer of the six models takes: ``python -m benchmarks.layer_times`` writes ``benchmarks/layer_times.json``.

The layers are built in plain torch as the papers have them, run on one sample, on one core, and timed by CPU time. Only
their ratios are of use elsewhere. Layers that are alike are timed once.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

RESULTS = Path(__file__).with_name("layer_times.json")
ROUNDS = 2  # of which the faster one counts: the first one warms up

# Each layer: its name, how many in a row are alike, a module, and its input.
Layers = Iterator[tuple[str, int, nn.Module, Tensor]]


def encoder(width: int, heads: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)


def bert() -> Layers:
    words = torch.zeros(1, 512, dtype=torch.long)
    hidden = torch.randn(1, 512, 1024)
    yield "embedding", 1, nn.Embedding(30_522, 1024), words
    yield "encoder", 24, encoder(1024, 16), hidden
    yield "head", 1, nn.Linear(1024, 30_522), hidden


def gpt2() -> Layers:
    words = torch.zeros(1, 1024, dtype=torch.long)
    hidden = torch.randn(1, 1024, 1024)
    yield "embedding", 1, nn.Embedding(50_257, 1024), words
    yield "block", 24, encoder(1024, 16), hidden
    yield "head", 1, nn.Linear(1024, 50_257), hidden


class Lstm(nn.Module):
    """Without its last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out


def gnmt() -> Layers:
    yield "lstm", 16, Lstm(1024), torch.randn(1, 50, 1024)


class Bottleneck(nn.Module):
    """Of ResNet: 1x1, 3x3, 1x1, and the way around them."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        narrow = out // 4
        self.body = nn.Sequential(
            *(nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
            *(nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
            *(nn.Conv2d(narrow, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        same = wide == out and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(wide, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


def resnet() -> Layers:
    stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    yield "stem", 1, stem, torch.randn(1, 3, 224, 224)
    wide, size = 64, 56
    for blocks, out, stride in ((3, 256, 1), (8, 512, 2), (36, 1024, 2), (3, 2048, 2)):
        yield f"first of {out}", 1, Bottleneck(wide, out, stride), torch.randn(1, wide, size, size)
        wide, size = out, size // stride
        yield f"block of {out}", blocks - 1, Bottleneck(out, out, 1), torch.randn(1, out, size, size)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    yield "head", 1, head, torch.randn(1, 2048, 7, 7)


def vgg() -> Layers:
    wide, size = 3, 224
    for convolutions, out in ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)):
        for number in range(convolutions):
            last = number == convolutions - 1
            pool = [nn.MaxPool2d(2)] if last else []
            layer = nn.Sequential(nn.Conv2d(wide, out, 3, padding=1), nn.ReLU(), *pool)
            yield f"conv {out}", 1, layer, torch.randn(1, wide, size, size)
            wide = out
        size //= 2
    yield "full 1", 1, nn.Sequential(nn.Flatten(), nn.Linear(25_088, 4096), nn.ReLU()), torch.randn(1, 512, 7, 7)
    yield "full 2", 1, nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()), torch.randn(1, 4096)
    yield "full 3", 1, nn.Linear(4096, 1000), torch.randn(1, 4096)


def alexnet() -> Layers:
    one = nn.Sequential(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2))
    two = nn.Sequential(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2))
    yield "conv 1", 1, one, torch.randn(1, 3, 224, 224)
    yield "conv 2", 1, two, torch.randn(1, 64, 27, 27)
    yield "conv 3", 1, nn.Sequential(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()), torch.randn(1, 192, 13, 13)
    yield "conv 4", 1, nn.Sequential(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()), torch.randn(1, 384, 13, 13)
    five = nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2))
    yield "conv 5", 1, five, torch.randn(1, 256, 13, 13)
    yield "full 1", 1, nn.Sequential(nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU()), torch.randn(1, 256, 6, 6)
    yield "full 2", 1, nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()), torch.randn(1, 4096)
    yield "full 3", 1, nn.Linear(4096, 1000), torch.randn(1, 4096)


MODELS: dict[str, Callable[[], Layers]] = {
    "bert": bert,
    "gpt2": gpt2,
    "resnet": resnet,
    "gnmt": gnmt,
    "vgg": vgg,
    "alexnet": alexnet,
}


def seconds(module: nn.Module, given: Tensor) -> tuple[float, float]:
    """Of CPU time, forward and backward; the faster round of each."""
    forwards, backwards = [], []
    for _ in range(ROUNDS):
        x = given.clone().requires_grad_(given.is_floating_point())
        begun = time.process_time()
        out = module(x)
        between = time.process_time()
        out.backward(torch.ones_like(out))
        forwards.append(between - begun)
        backwards.append(time.process_time() - between)
        module.zero_grad(set_to_none=True)
    return min(forwards), min(backwards)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, object]]] = {}
    for name, model in MODELS.items():
        layers = found[name] = []
        for layer, alike, module, given in model():
            forward, backward = seconds(module, given)
            parameters = sum(p.numel() for p in module.parameters())
            told = {"layer": layer, "forward": round(forward, 5), "backward": round(backward, 5)}
            layers.extend({**told, "parameters": parameters} for _ in range(alike))
        whole = sum(float(str(x["forward"])) + float(str(x["backward"])) for x in layers)
        print(f"{name}: {len(layers)} layers, {whole:.2f} s", flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Which of timm's most used networks travel as data: `python -m benchmarks.networks [--only resnet50]`.

Needs timm, and with it torchvision, which the project does not install. Weights are drawn, not loaded. For each name
the figures of its graph, or why it is refused; each that is not is compared with the module on made records. Some
minutes. Takes no seeds: what is drawn moves no figure.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from pathlib import Path

import torch

from benchmarks.records import Row, Rows, options
from dpswd.public_client.extractor.tracing import trace
from dpswd.shared.core.errors import ExtractorUnsupported

RESULTS = Path(__file__).parent / "results" / "networks.json"
NAMES = (
    "resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d", "seresnet50", "regnety_032", "densenet121",
    "inception_v3",
    "mobilenetv2_100", "mobilenetv3_small_100", "mobilenetv3_large_100", "efficientnet_b0", "tf_efficientnet_b0",
    "convnext_tiny", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "vit_small_patch16_224",
    "deit_small_patch16_224", "vit_small_patch14_dinov2", "vit_base_patch16_224",
)  # fmt: skip
SHAPE = (3, 224, 224)


def measured(name: str) -> Row:
    """Of the graph of one of timm's models, or why it is refused."""
    torch.manual_seed(0)
    sized = {"img_size": SHAPE[1]} if "dinov2" in name else {}
    module = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=0, **sized).eval()
    try:
        graph = trace(module, SHAPE)
    except ExtractorUnsupported as error:
        return {"refused": str(error).splitlines()[1].strip()}
    cost = graph.cost
    return {
        "nodes": len(graph.nodes),
        "weights": cost.parameters,
        "numbers_a_record": cost.activations,
        "operations_a_record": cost.work,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=NAMES, help="names of timm's models")
    options(parser, RESULTS)
    arguments = parser.parse_args()
    jobs = [({"network": name}, functools.partial(measured, name)) for name in arguments.only]
    rows = Rows(RESULTS, arguments.results).run(jobs)
    print(f"{sum('refused' in row for row in rows)} refused")


if __name__ == "__main__":
    main()

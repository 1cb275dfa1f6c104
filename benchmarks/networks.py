"""Which of timm's most used networks travel as data: `python -m benchmarks.networks [--only resnet50]`.

Needs timm, and with it torchvision, which the project does not install. Weights are drawn, not loaded. For each name
the figures of its graph, or why it is refused; each that is not is compared with the module on made records.
"""

from __future__ import annotations

import argparse
import importlib
import sys

import torch

from dpswd.public_client.extractor.tracing import trace
from dpswd.shared.core.errors import ExtractorUnsupported

NAMES = (
    "resnet18", "resnet50", "wide_resnet50_2", "resnext50_32x4d", "seresnet50", "regnety_032", "densenet121",
    "inception_v3",
    "mobilenetv2_100", "mobilenetv3_small_100", "mobilenetv3_large_100", "efficientnet_b0", "tf_efficientnet_b0",
    "convnext_tiny", "swin_tiny_patch4_window7_224", "vit_tiny_patch16_224", "vit_small_patch16_224",
    "deit_small_patch16_224", "vit_small_patch14_dinov2", "vit_base_patch16_224",
)  # fmt: skip
SHAPE = (3, 224, 224)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=NAMES, help="names of timm's models")
    timm = importlib.import_module("timm")
    refused = 0
    for name in parser.parse_args().only:
        torch.manual_seed(0)
        sized = {"img_size": SHAPE[1]} if "dinov2" in name else {}
        module = timm.create_model(name, pretrained=False, num_classes=0, **sized).eval()
        try:
            graph = trace(module, SHAPE)
        except ExtractorUnsupported as error:
            refused += 1
            print(f"{name:32} {str(error).splitlines()[1].strip()}", flush=True)
            continue
        cost = graph.cost
        print(
            f"{name:32} {len(graph.nodes):4} nodes, {cost.parameters:,} weights, {cost.activations:,} numbers and "
            f"{cost.work:,} operations a record",
            flush=True,
        )
    print(f"{refused} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())

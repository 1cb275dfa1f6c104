"""A team's network as ONNX: an extra, which one line of `ladder.whole_model` opens."""

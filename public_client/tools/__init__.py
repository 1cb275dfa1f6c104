"""To and from a team's own tools: ONNX, torch.export and a model card out, MLflow and Weights & Biases beside."""

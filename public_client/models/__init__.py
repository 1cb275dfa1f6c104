"""Models of other libraries as an `nn.Module` that can travel: trees, linear models, pipelines."""

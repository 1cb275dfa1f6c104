"""Adapting a model: hospitals and federations of them, the estimator, and the models that it saves."""

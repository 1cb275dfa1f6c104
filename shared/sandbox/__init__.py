"""Extractors as data: a traced closed-vocabulary graph, its weights, and their evaluation record by record.

The ML team traces and serialises (`dpswd.public_client.extractor.tracing`); the curator parses
(`ExtractorGraph.from_bytes`, `weights_from_bytes`) and evaluates (`building.Extractor`). No code travels.
"""

"""The releases of the curator and the post-processing that both parties can repeat.

Everything here is pure: tensors and a noise source in, tensors out. Opening records, charging a budget and
choosing the sample belong to the curator.
"""

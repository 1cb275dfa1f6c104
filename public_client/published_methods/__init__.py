"""Methods that neither the ladder nor the default generator needs: others' papers, and what wins on some data alone.

The house imports nothing of this; `dpswd.public_client.methods.method_kinds` loads it when a method is asked for by
name, and a script imports it. A method is one file, or one folder: what is put here is found by its name.
"""

from dpswd.public_client.published_methods.all_weights import AllWeights, Rows
from dpswd.public_client.published_methods.dpda import Dpda
from dpswd.public_client.published_methods.finetune import Finetune
from dpswd.public_client.published_methods.pseudo_labels import PseudoLabels

__all__ = ["AllWeights", "Dpda", "Finetune", "PseudoLabels", "Rows"]

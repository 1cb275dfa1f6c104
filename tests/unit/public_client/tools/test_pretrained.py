"""Classifiers of Hugging Face, timm, Lightning and scikit-learn: one call, the same scores, and they travel."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from dpswd.public_client.experiments.own_model import own_model
from dpswd.public_client.extractor.tracing import trace
from dpswd.public_client.ladder.whole_model import split
from dpswd.shared.core.errors import DataInvalid, InvalidValue, SettingsError

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 3}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 3}
WORDS = {"vocab_size": 50, "max_position_embeddings": 20}
HUGGING_FACE = {
    "ResNet": STAGES | {"embedding_size": 8, "layer_type": "basic"},
    "ConvNext": STAGES | {"num_stages": 2},
    "ViT": SIZES | {"image_size": 32, "patch_size": 8},
    "DeiT": SIZES | {"image_size": 32, "patch_size": 8},
    "Bert": SIZES | WORDS,
    "Roberta": SIZES | WORDS,
    "DistilBert": WORDS | {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "num_labels": 3},
    "Electra": SIZES | WORDS | {"embedding_size": 16},
}


def made(name):
    """The model with drawn weights, and records; of texts, the ends of two are padding."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**HUGGING_FACE[name])
    if "vocab_size" not in HUGGING_FACE[name]:
        return getattr(transformers, f"{name}ForImageClassification")(config).eval(), torch.randn(4, 3, 32, 32)
    records = torch.randint(3, 50, (4, 12)).float()
    records[:2, 8:] = float(config.pad_token_id)
    return getattr(transformers, f"{name}ForSequenceClassification")(config).eval(), records


def scores_of(model, records):
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            return model(records).logits
        return model(records.long(), attention_mask=(records != model.config.pad_token_id).long()).logits


def split_and_sent(model, records):
    parts = split(model, records)
    trace(parts.extractor, tuple(records.shape[1:]))
    with torch.no_grad():
        return parts.whole()(records)


@pytest.mark.long
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_folder_of_hugging_face_scores_the_same_and_travels(tmp_path, name):
    model, records = made(name)
    model.save_pretrained(tmp_path)
    scores = split_and_sent(tmp_path, records)
    torch.testing.assert_close(scores, scores_of(model, records), rtol=1e-4, atol=1e-5)


def test_a_model_in_memory_stays_as_it_is():
    model, records = made("ResNet")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.testing.assert_close(split_and_sent(model.train(), records), scores_of(model.eval(), records))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_folder_is_a_model_of_the_command_lines(tmp_path):
    model, records = made("ResNet")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(own_model(None, tmp_path, records).whole()(records), scores_of(model, records))
    with pytest.raises(SettingsError, match="is a model by itself; leave --network out"):
        own_model("torch.nn:Identity", tmp_path, records)


def test_padding_before_the_words_is_noticed():
    model, records = made("Roberta")
    records = records.flip(1)
    with pytest.raises(InvalidValue, match="put the padding behind the words"):
        split(model, records)


def test_folders_that_are_refused(tmp_path):
    model, records = made("ResNet")
    with pytest.raises(DataInvalid, match=r"holds no config\.json"):
        split(tmp_path, records)
    model.save_pretrained(tmp_path)
    with pytest.raises(DataInvalid, match="does not take the source's records of shape"):
        split(tmp_path, records[:, :2])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["ResNetModel"]}))
    with pytest.raises(DataInvalid, match="holds ResNetModel; needed is a classifier"):
        split(tmp_path, records)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(DataInvalid, match="holds no safetensors; other weights run code"):
        split(tmp_path, records)


@pytest.mark.long
def test_what_cannot_travel_says_which_layer(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=20, n_embd=16, n_layer=1, n_head=2, num_labels=3, pad_token_id=0
    )
    model = transformers.GPT2ForSequenceClassification(config).eval()
    with pytest.raises((InvalidValue, DataInvalid), match="GPT2ForSequenceClassification"):
        split(model, torch.randint(3, 50, (4, 12)).float())


def test_timm_models_in_memory_and_in_folders(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model, records = timm.create_model("resnet18", num_classes=3).eval(), torch.randn(2, 3, 64, 64)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    with torch.no_grad():
        expected = model(records)
    for given in (model, tmp_path):
        torch.testing.assert_close(split_and_sent(given, records), expected, rtol=1e-4, atol=1e-4)


def test_a_lightning_module_that_was_trained(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    model = Net()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4), torch.arange(32) % 3), 8)
    with warnings.catch_warnings(action="ignore"):
        trainer = lightning.Trainer(
            max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(model, data)
    records = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(split_and_sent(model, records), model.eval()(records))


def test_a_module_without_a_forward_says_what_to_pass():
    with pytest.raises(DataInvalid, match=r"Module takes no records of shape \(4,\).*forward"):
        split(nn.Module(), torch.randn(5, 4))


@pytest.mark.parametrize("kind", ["pipeline", "search"])
def test_pipelines_and_searches_of_scikit_learn(kind):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(120, 4)), np.arange(120) % 2
    model = make_pipeline(StandardScaler(), RandomForestClassifier(5, random_state=0))
    if kind == "search":
        model = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
    model.fit(rows, labels)
    records = torch.from_numpy(rows[:30]).float()
    assert (split_and_sent(model, records).argmax(1).numpy() == model.predict(records.numpy())).all()


TORCHVISION = (
    "resnet18",
    "densenet121",
    "efficientnet_b0",
    "mobilenet_v3_small",
    "shufflenet_v2_x0_5",
    "convnext_tiny",
)


@pytest.mark.long
@pytest.mark.parametrize("name", TORCHVISION)
def test_a_model_of_torchvision_scores_the_same_and_travels(name):
    """As it is in memory. torchvision belongs to one torch; where it fits, these are tried (0.29 with torch 2.14)."""
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model, records = models.get_model(name, weights=None, num_classes=3).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(split_and_sent(model, records), model(records), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), [("swin_t", "shifted_window_attention"), ("squeezenet1_1", r"head=\.\.\.")])
def test_a_model_of_torchvision_that_cannot_travel_names_the_layer(name, words):
    models = pytest.importorskip("torchvision.models")
    model = models.get_model(name, weights=None, num_classes=3).eval()
    with pytest.raises(InvalidValue, match=words):
        split_and_sent(model, torch.randn(2, 3, 64, 64))

#!/usr/bin/env python3
"""Lists every key of config.json that transformers reads for a Qwen3 and for a Llama model, with types and defaults.

The test of src/model/config_keys.cpp walks the list. Fields of the two classes are listed as they are declared. Other
keys are found by watching which attributes of a configuration are read while small models are loaded, trained for one
step and saved, and then once more for every key found that way with a value in it, because one key may guard another.
Keys that are taken out of the file before there is an attribute are found in the sources.

    tests/parity/list_config_keys.py --out tests/model/transformers_keys.json
    tests/parity/list_config_keys.py --check tests/model/transformers_keys.json
"""
import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import pathlib
import sys
import tempfile
import textwrap
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import configuration_utils, modeling_rope_utils
from transformers.models.auto import configuration_auto

CLASSES = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}
GENERATION = set(transformers.GenerationConfig._get_default_generation_params())
LAYERS = 2
SMALL = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=LAYERS, num_attention_heads=2,
             num_key_value_heads=1, head_dim=8, max_position_embeddings=32)
ROPES = [
    {},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    {"rope_scaling": {"type": "yarn", "factor": 2.0}},
]
# Something of every type: whatever a key may guard, one of them opens it.
VALUES = [1, True, "sliding_attention", {"a": 1}, ["sliding_attention"] * LAYERS]


def fields_of(cls):
    """Declared fields: the types that are checked (those of the base class are annotations alone) and the default."""
    rows = {}
    for field in dataclasses.fields(cls):
        checked = not isinstance(field.type, str)
        shown = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        rows[field.name] = {"type": shown.replace("transformers.modeling_rope_utils.", "") if checked else "any",
                            "default": field.default}
    return rows


def strings_read(function, names):
    """The strings by which a function reads the dictionaries of these names."""
    found = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        held = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("pop", "get"):
            held, keys = node.func.value, node.args[:1]
        elif isinstance(node, ast.Subscript):
            held, keys = node.value, [node.slice]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            held, keys = node.comparators[0], [node.left]
        if isinstance(held, ast.Name) and held.id in names:
            found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def taken_from_file():
    base = configuration_utils.PreTrainedConfig
    found = strings_read(base.__post_init__, {"kwargs"})
    found |= strings_read(modeling_rope_utils.RotaryEmbeddingConfigMixin.convert_rope_params_to_dict, {"kwargs"})
    for function in (base.from_pretrained.__func__, base.get_config_dict.__func__, base._get_config_dict.__func__,
                     base.from_dict.__func__, configuration_auto.AutoConfig.from_pretrained.__func__):
        found |= strings_read(function, {"config_dict"})
    return found | GENERATION


@contextlib.contextmanager
def watched(cls, reads):
    base = configuration_utils.PreTrainedConfig
    original = base.__getattribute__

    def watching(self, key):
        if type(self) is cls and not key.startswith("__"):
            reads.add(key)
        return original(self, key)

    base.__getattribute__ = watching
    try:
        yield
    finally:
        base.__getattribute__ = original


def train_once(cls, extra, attentions=("sdpa", "eager")):
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.AutoModelForCausalLM.from_config(cls(**SMALL))
        model.save_pretrained(folder)
        path = pathlib.Path(folder, "config.json")
        path.write_text(json.dumps({**SMALL, "model_type": cls.model_type, **extra}))
        for attention in attentions:
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention).train()
            tokens = torch.arange(24).reshape(2, 12)
            model(input_ids=tokens, labels=tokens).loss.backward()
            model.save_pretrained(folder)


def keys_read(cls):
    reads = set()
    for extra in ROPES:
        with watched(cls, reads):
            train_once(cls, extra)
    fields = {field.name for field in dataclasses.fields(cls)}
    attributes = {name for name in dir(cls) if not name.startswith("__")}
    asked = fields | attributes | GENERATION  # the first two are always there, the last are dropped
    while left := sorted(reads - asked):
        for key in left:
            asked.add(key)
            for value in VALUES:
                seen = set()
                with watched(cls, seen), contextlib.suppress(Exception):
                    train_once(cls, {key: value}, attentions=("eager",))
                reads |= seen
    methods = {name for name in attributes if callable(inspect.getattr_static(cls, name)) or
               isinstance(inspect.getattr_static(cls, name), (classmethod, staticmethod))}
    return (reads | attributes | taken_from_file()) - methods - fields


def listing():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(transformers.logging.CRITICAL)
    rows = {"transformers": transformers.__version__}
    for name, cls in CLASSES.items():
        with contextlib.redirect_stderr(io.StringIO()):
            rows[name] = {"fields": fields_of(cls), "read": sorted(keys_read(cls))}
    rows["rope"] = sorted(modeling_rope_utils.RopeParameters.__annotations__ | {"type": None})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, help="the list is written there")
    parser.add_argument("--check", type=pathlib.Path, help="the list has to be this one")
    options = parser.parse_args()
    rows = listing()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    if options.check:
        known = json.loads(options.check.read_text())
        for name in ("qwen3", "llama", "rope"):
            if rows[name] != known[name]:
                sys.exit(f"transformers {rows['transformers']} reads other keys of {name} than {options.check}, of "
                         f"{known['transformers']}: list them anew with --out and see what the test says")


if __name__ == "__main__":
    main()

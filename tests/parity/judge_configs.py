#!/usr/bin/env python3
"""Writes beside every odd config.json of a list what transformers makes of it: it trains a step with it, or raises.

The list holds changes to a small model's configuration. `unsupported` is ours: what transformers trains and Headroom
refuses by name. The test of the list holds Headroom to the rest: what raises is refused, what trains is read.

    tests/parity/judge_configs.py tests/model/odd_configs.json [--check]
"""
import argparse
import json
import pathlib
import sys
import tempfile
import warnings

import make_reference  # sets the environment
import torch
import transformers

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
CLASSES = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}


def verdict(kind, change, folder):
    config = {**SMALL, "model_type": kind, **change}
    (folder / "config.json").write_text(json.dumps(config))
    try:
        # Without a dtype that would stand in for the file's.
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).train()
        tokens = torch.arange(48).reshape(2, 24)
        model(input_ids=tokens, labels=tokens).loss.backward()
    except Exception:
        return "raises"
    return "trains"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a verdict is another one")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(transformers.logging.CRITICAL)
    known = json.loads(options.list.read_text())
    rows = json.loads(json.dumps(known["rows"]))
    for kind, cls in CLASSES.items():
        with tempfile.TemporaryDirectory() as folder:
            transformers.AutoModelForCausalLM.from_config(cls(**SMALL)).save_pretrained(folder)
            for row in rows:
                row[kind] = verdict(kind, row["change"], pathlib.Path(folder))
    if options.check:
        for row, before in zip(rows, known["rows"]):
            if row != before:
                print(f"transformers {transformers.__version__} judges {row}, {known['transformers']} judged {before}")
        sys.exit(rows != known["rows"])
    text = ",\n".join(json.dumps(row) for row in rows)
    options.list.write_text(
        f'{{"transformers": "{transformers.__version__}", "model": {json.dumps(SMALL)}, "rows": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()

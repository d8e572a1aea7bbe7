"""A small loop with the one line for transformers."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from perfd.hook.transformers import PerfdCallback


class Texts(torch.utils.data.Dataset):
    """Random tokens."""

    def __len__(self):
        return 400

    def __getitem__(self, _index):
        tokens = torch.randint(0, 64, (16,))
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
)
arguments = TrainingArguments(
    sys.argv[1],
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=12,
    logging_steps=5,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    include_num_input_tokens_seen=True,
)
callback = PerfdCallback(count_flops=True)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Texts(), callbacks=[callback]).train()

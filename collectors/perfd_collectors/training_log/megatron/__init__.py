"""The parser of Megatron-LM logs and its forks."""

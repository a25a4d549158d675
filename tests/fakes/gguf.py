"""A small random Llama written as a GGUF file, with a byte-level tokenizer, and the weights it was written from."""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
HIDDEN, HEADS, KV_HEADS, LAYERS = 32, 4, 2, 2


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types (3 is control) and merges: three special tokens, all bytes, `he`, two spaces."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|none|>", "<|start|>", "<|end|>", *sorted(ByteLevel.alphabet()), "he", "ĠĠ"]
    return tokens, [3] * 3 + [1] * (len(tokens) - 3), ["h e", "Ġ Ġ"]


def save_gguf(file: Path, *, quantized: bool = False, tokenizer: str = "gpt2") -> dict:
    """Write the file; returns the state dict of the model in transformers' names and order."""
    import torch
    from gguf import GGMLQuantizationType, GGUFWriter, quants
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens, types, merges = vocabulary()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokens),
            hidden_size=HIDDEN,
            intermediate_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
    )
    writer = GGUFWriter(str(file), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for name, tensor in state.items():
        array = _in_gguf_order(name, tensor).contiguous().numpy()
        kind = GGMLQuantizationType.Q8_0 if quantized and array.ndim == 2 else None
        data = array if kind is None else quants.quantize(array, kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return state


def _in_gguf_order(name, tensor):
    """Rotary halves of queries and keys are interleaved in GGUF files."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    rows, columns = tensor.shape
    return tensor.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _gguf_name(name: str) -> str:
    table = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for old, new in table.items():
        name = name.replace(old, new)
    return name

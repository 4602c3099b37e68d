"""Quantized safetensors: fp8, compressed-tensors, AWQ and GPTQ. GGUF has a folder of its own."""

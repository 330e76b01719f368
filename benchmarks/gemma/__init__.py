"""Batch-1 decode kernels of Gemma 3's shape: measured beside ONNX Runtime, and served by nothing.

Gemma on a GPU is decoded by ONNX Runtime; cockpit/device/kernels/decode_rows.cu serves Qwen2's and Llama's shape.
"""

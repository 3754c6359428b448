"""Policies as files that need no more than their runtime: ONNX, TorchScript, numpy."""

"""Ten lines each: how a policy file is loaded, per format and language (`string.Template` texts)."""

_LIGHT = """import numpy as np
import rl_training

policy = rl_training.load_policy("$file")
action = policy.predict(np.zeros($obs_dim, dtype=np.float32))    # one observation
actions = policy.predict(np.zeros((4, $obs_dim)))                # a batch
assert actions.shape == (4, $action_dim)"""

_ONNX = """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("$file")
obs = np.zeros((4, $obs_dim), dtype=np.float32)
(action,) = session.run(["action"], {"obs": obs})
assert action.shape == (4, $action_dim)

# or, with checked inputs: rl_training.load_policy("$file").predict(obs)"""

_TORCH = """import torch

policy = torch.jit.load("$file")
with torch.inference_mode():
    out = policy(torch.zeros(4, $obs_dim))
action = out[0] if isinstance(out, tuple) else out
assert action.shape == (4, $action_dim)"""

_ONNX_CPP = """#include <onnxruntime_cxx_api.h>
#include <vector>

int main() {
  Ort::Env env;
  Ort::Session session(env, "$file", Ort::SessionOptions{});
  std::vector<float> obs($obs_dim);
  const int64_t shape[] = {1, $obs_dim};
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto input = Ort::Value::CreateTensor<float>(memory, obs.data(), obs.size(), shape, 2);
  const char *in[] = {"obs"}, *out[] = {"action"};
  auto result = session.Run(Ort::RunOptions{}, in, &input, 1, out, 1);
  const float* action = result[0].GetTensorData<float>();  // $action_dim numbers
}"""

_TORCH_CPP = """#include <torch/script.h>

int main() {
  torch::jit::Module policy = torch::jit::load("$file");
  torch::NoGradGuard no_grad;
  auto out = policy.forward({torch::zeros({1, $obs_dim})});
  torch::Tensor action = out.isTuple() ? out.toTuple()->elements()[0].toTensor() : out.toTensor();
  return action.size(1) == $action_dim ? 0 : 1;
}"""

PYTHON = {"safetensors": _LIGHT, "onnx": _ONNX, "torchscript": _TORCH}
CPP = {
    "safetensors": "// C++ programs load the ONNX form: rl-training export --format onnx --out policy.onnx\n"
    + _ONNX_CPP.replace("$file", "policy.onnx"),
    "onnx": _ONNX_CPP,
    "torchscript": _TORCH_CPP,
}
LIBRARIES = {
    "safetensors": "Needs numpy and safetensors beside this package; neither torch nor Gymnasium.",
    "onnx": "Needs numpy and onnxruntime; neither this package, torch nor Gymnasium.",
    "torchscript": "Needs torch. TorchScript is a program: load it only from a source you trust.",
}

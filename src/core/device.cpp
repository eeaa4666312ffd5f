#include "headroom/core/device.h"

#include <array>

#include "headroom/core/error.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"

namespace headroom {

Device parse_device(std::string_view text) {
  if (text == "cpu") return {DeviceKind::cpu};
  if (text == "cuda") return {DeviceKind::cuda};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    constexpr std::int64_t kMost = 65'535;  // no machine has more
    const std::int64_t index =
        parse_whole(fmt::format("device {}: number", quote(text)), text.substr(kPrefix.size()), 0, kMost);
    return {DeviceKind::cuda, static_cast<int>(index)};
  }
  fail(ErrorKind::input, "device {} is unknown; use cpu, cuda or cuda:N", quote(text));
}

std::string to_string(const Device& device) {
  const std::string_view phantom = device.phantom ? "phantom " : "";
  if (device.kind == DeviceKind::cpu) return fmt::format("{}cpu", phantom);
  return fmt::format("{}cuda:{}", phantom, device.index);
}

std::string_view name(SimdLevel level) {
  constexpr std::array<std::string_view, 3> kNames = {"portable", "avx2", "avx512"};
  return kNames[static_cast<std::size_t>(level)];
}

namespace {

bool is_pascal(const DeviceDescription& device) {
  return device.kind == DeviceKind::cuda && device.compute_major == 6;
}

std::string capability(const DeviceDescription& device) {
  return fmt::format("{}.{}", device.compute_major, device.compute_minor);
}

}  // namespace

DTypeChoice default_dtype(const DeviceDescription& device) {
  if (device.kind == DeviceKind::cpu) {
    return {DType::f32,
            fmt::format("{} runs f32 at full rate; 16-bit inputs are widened to it", name(device.simd))};
  }
  if (device.compute_major >= 8) {
    return {DType::bf16, fmt::format("compute capability {} has bf16 tensor cores", capability(device))};
  }
  if (device.compute_major == 7) {
    return {DType::f16,
            fmt::format("compute capability {} has f16 tensor cores and no bf16", capability(device))};
  }
  if (is_pascal(device)) {
    return {DType::f32,
            fmt::format("Pascal (compute capability {}) is fastest and safest in f32", capability(device))};
  }
  return {DType::f32, fmt::format("compute capability {} has no fast 16-bit arithmetic", capability(device))};
}

std::optional<std::string> dtype_warning(const DeviceDescription& device, DType dtype) {
  if (device.kind == DeviceKind::cpu) {
    if (dtype == DType::f32) return std::nullopt;
    return fmt::format(
        "{} on {} is widened to f32 inside every kernel: activations halve, time does not; f32 is the "
        "default there",
        name(dtype), device.name);
  }
  if (dtype == DType::f16 && is_pascal(device)) {
    if (device.compute_minor == 0) {
      return fmt::format(
          "f16 on {} (Pascal, compute capability 6.0) is converted to f32 and back inside many operations "
          "and its "
          "exponentials overflow above 65504; f32 is the default there",
          device.name);
    }
    return fmt::format(
        "f16 on {} (Pascal, compute capability {}) runs at 1/64 of the f32 rate; f32 is the default there",
        device.name, capability(device));
  }
  if (dtype == DType::bf16 && device.compute_major < 8) {
    return fmt::format("bf16 on {} (compute capability {}) has no hardware arithmetic; use f32 there",
                       device.name, capability(device));
  }
  if (dtype == DType::f16 && device.compute_major < 6) {
    return fmt::format(
        "f16 on {} (compute capability {}) has no hardware arithmetic; f32 is the default there", device.name,
        capability(device));
  }
  return std::nullopt;
}

}  // namespace headroom

// Safetensors files from and to views of the host's memory, and weights loaded there through a Context.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/model.h"
#include "memory/rehearsed.h"

namespace headroom {

struct NamedView {
  std::string name;
  TensorView view;  // dense
};

inline std::span<std::byte> bytes_of(const TensorView& view) {
  return {static_cast<std::byte*>(view.raw()), static_cast<std::size_t>(view.bytes())};
}

inline SafetensorsChecksums write_safetensors(const std::filesystem::path& path,
                                              std::span<const NamedView> tensors,
                                              AllowedValues values = AllowedValues::any) {
  std::vector<NamedShape> shapes;
  for (const auto& [name, view] : tensors) shapes.push_back({name, view.dtype(), view.shape()});
  SafetensorsWriter file(path, std::move(shapes), values);
  for (const NamedView& tensor : tensors) {
    if (tensor.view.elements() > 0) file.write(bytes_of(tensor.view));
  }
  return file.commit();
}

inline void read_into(const SafetensorsFile& file, std::string_view name, const TensorView& view) {
  file.read(file.at(name, view.shape()), view.dtype(), 0, bytes_of(view));
}

// The flat tensor holds what `flat` did before it is read into.
inline void load_weights(const std::filesystem::path& directory, const ParameterTable& table,
                         const TensorView& flat) {
  run_rehearsed([&](Context& context) {
    context.phase(Phase::load, [&] {
      const Tensor tensor = context.allocate({.name = "flat", .dtype = flat.dtype(), .shape = flat.shape()});
      Staging staging(context);
      staging.upload(tensor, bytes_of(flat));
      if (!context.phantom()) load_weights(directory, table, tensor, staging);
      staging.download(bytes_of(flat), tensor);
    });
  });
}

}  // namespace headroom

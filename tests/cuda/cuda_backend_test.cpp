// The same program rehearsed and run on a GPU: arena, staging, two streams, and the same bits as on the CPU.
#include "cuda/cuda_backend.h"
#include "cuda/gpu_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/device.h"
#include "headroom/ops.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

class CudaTest : public GpuTest {};

constexpr std::int64_t kCount = (1 << 20) + 3;

// Fills on main, copies to staging on the copy stream while main goes on, twice, through the same staging
// bytes.
std::vector<float> program(Context& context) {
  std::vector<float> seen;
  Tensor weight;
  context.phase(Phase::load, [&] {
    weight = context.allocate(
        {.name = "weight", .category = Category::parameters, .shape = {kCount}, .lifetime = Lifetime::run});
    random_fill(context, weight, Random(9), -1, 1);
  });
  context.phase(Phase::save, [&] {
    for (int i = 0; i < 2; ++i) {
      const Tensor staged = context.allocate(
          {.name = "staged", .category = Category::staging, .shape = {kCount}, .space = Space::host});
      context.wait(StreamId::copy, context.record(StreamId::main));
      context.copy(StreamId::copy, staged, weight);
      const Ticket copied = context.record(StreamId::copy);
      const Tensor work = context.allocate({.name = "work", .shape = {kCount}});
      random_fill(context, work, Random(10), 0, 1);  // main does not wait for the copy
      context.wait(StreamId::main, copied);
      context.copy(StreamId::main, weight, work);
      // A declared read-back: the host looks when the copy is done, and main is not waited for.
      context.wait_on_host(copied);
      const std::span<const float> values = context.host_elements<float>(staged);
      seen.insert(seen.end(), values.begin(), values.end());
    }
  });
  return seen;
}

TEST_F(CudaTest, TheSameBitsAsOnTheCpu) {
  const Layout layout = rehearse([](Context& context) { program(context); });
  CpuBackend cpu(2);
  Context on_cpu(cpu, layout);
  const std::vector<float> expected = program(on_cpu);
  ASSERT_EQ(expected.size(), 2U * kCount);
  CudaBackend gpu(0);
  const std::int64_t free_before = cuda_memory(0).free_bytes;
  {
    Context on_gpu(gpu, layout);
    EXPECT_EQ(gpu.reserved_bytes(Space::device), layout.reserved(Space::device));
    const std::int64_t free_reserved = cuda_memory(0).free_bytes;
    EXPECT_GE(free_before - free_reserved, layout.reserved(Space::device));
    EXPECT_EQ(program(on_gpu), expected);
    EXPECT_EQ(cuda_memory(0).free_bytes, free_reserved);  // nothing was allocated outside the arena
  }
  EXPECT_EQ(cuda_memory(0).free_bytes, free_before);
}

// Through staging, in the memory that was planned for this GPU.
TEST_F(CudaTest, UploadsAndDownloads) {
  constexpr std::int64_t kElements = 3 * Staging::kPieceBytes / 4 + 5;
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(Random(1).uniform(i));
  std::vector<float> back(values.size());
  const auto move = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor tensor = context.allocate({.name = "tensor", .shape = {kElements}});
      const Tensor other = context.allocate({.name = "other", .shape = {kElements}});
      context.upload(tensor, std::as_bytes(std::span(values)));
      context.copy(StreamId::main, other, tensor);
      context.download(std::as_writable_bytes(std::span(back)), other);
    });
  };
  CudaBackend gpu(0);
  Context context(gpu, rehearse(move, gpu.description()));
  for (int i = 0; i < 3; ++i) {
    std::ranges::fill(back, -1);
    move(context);
    EXPECT_TRUE(back == values);
  }
}

TEST_F(CudaTest, IsListedWithItsMemory) {
  const ListedDevice listed = find_device({DeviceKind::cuda, 0});
  EXPECT_GT(listed.memory.total_bytes, 0);
  EXPECT_LE(listed.memory.free_bytes, listed.memory.total_bytes);
  EXPECT_GT(listed.description.cores, 0);
  EXPECT_GE(listed.description.compute_major, 6);
  EXPECT_FALSE(default_dtype(listed.description).reason.empty());
}

TEST_F(CudaTest, MoreThanTheCardHasIsRefusedBeforeItIsAsked) {
  CudaBackend gpu(0);
  try {
    static_cast<void>(gpu.reserve(Space::device, cuda_memory(0).total_bytes + 1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_NE(std::string(error.what()).find("cuda:0; held by others"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace headroom

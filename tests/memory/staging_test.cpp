// Data between ordinary host memory and tensors: through two pieces where the host cannot reach the device's
// memory, in place where it can.
#include "headroom/memory/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "memory/late_backend.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const DeviceDescription kGpu{.kind = DeviceKind::cuda, .name = "made up"};

std::vector<std::byte> numbered(std::int64_t bytes, unsigned salt = 0) {
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::byte>((i * 2654435761U + salt) >> 11);
  return data;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::runtime) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Uploads to tensors of these sizes and downloads them again, all through one Staging.
struct RoundTrip {
  std::vector<std::int64_t> elements;
  Space space = Space::device;
  std::vector<std::vector<std::byte>> back = {};

  void operator()(Context& context) {
    back.clear();
    context.phase(Phase::step, [&] {
      std::vector<Tensor> tensors;
      for (const std::int64_t count : elements) {
        tensors.push_back(context.allocate({.name = "tensor", .shape = {count}, .space = space}));
      }
      Staging staging(context);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        staging.upload(tensors[i], numbered(4 * elements[i], static_cast<unsigned>(i)));
      }
      for (const Tensor& tensor : tensors) {
        back.emplace_back(static_cast<std::size_t>(tensor.view().bytes()));
        staging.download(back.back(), tensor);
      }
    });
  }
};

TEST(Staging, BringsBackEveryByteInThePlannedMemory) {
  constexpr std::int64_t kPiece = Staging::kPieceBytes / 4;
  RoundTrip program{{kPiece, 1, 0, kPiece + 5, 7, 1000}};
  for (const Space space : {Space::device, Space::host}) {
    program.space = space;
    for (const DeviceDescription& played : {kGpu, LateBackend::apart(1)}) {
      const Layout layout = rehearse(program, played);
      LateBackend backend(played);
      Context context(backend, layout);
      program(context);
      for (std::size_t i = 0; i < program.elements.size(); ++i) {
        EXPECT_TRUE(program.back[i] == numbered(4 * program.elements[i], static_cast<unsigned>(i))) << i;
      }
      EXPECT_EQ(backend.host_copies(), space == Space::host ? 0 : 2 * (1 + 1 + 2 + 1 + 1));
      EXPECT_EQ(context.ledger().phases()[0].events, layout.rehearsal.phases()[0].events);
      const CategoryBytes& peak = layout.rehearsal.usage(Space::host).peak;
      EXPECT_EQ(peak[static_cast<std::size_t>(Category::staging)], 2 * Staging::kPieceBytes);
    }
  }
}

TEST(Staging, TakesNoMoreThanTheLargestTransfer) {
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor tensor = context.allocate({.name = "tensor", .shape = {100}});
      context.upload(tensor, numbered(400));
      std::vector<std::byte> back(400);
      context.download(back, tensor);
      EXPECT_TRUE(context.phantom() || back == numbered(400));
    });
  };
  const Layout layout = rehearse(program, kGpu);
  EXPECT_EQ(layout.rehearsal.usage(Space::host).peak_bytes, 2 * 400);
  LateBackend backend(kGpu);
  Context context(backend, layout);
  program(context);
}

TEST(Staging, WorksInPlaceOnACpu) {
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor tensor = context.allocate({.name = "tensor", .shape = {Staging::kPieceBytes}});
      Staging staging(context);
      int pieces = 0;
      const TensorPart part{tensor, 3, Staging::kPieceBytes - 3};
      staging.upload(part, [&](std::span<std::byte> piece, std::int64_t first) {
        EXPECT_EQ(static_cast<void*>(piece.data()), part.view().raw());
        EXPECT_EQ(std::ssize(piece), part.view().bytes());
        EXPECT_EQ(first, 0);
        ++pieces;
      });
      staging.download(part, [&](std::span<const std::byte> piece, std::int64_t) {
        EXPECT_EQ(static_cast<const void*>(piece.data()), part.view().raw());
        ++pieces;
      });
      EXPECT_EQ(pieces, context.phantom() ? 0 : 2);
      std::vector<std::byte> memory;
      EXPECT_EQ(staging.on_host(tensor, memory).raw(), tensor.view().raw());
      EXPECT_TRUE(memory.empty());
    });
  };
  CpuBackend backend(1);
  const Layout layout = rehearse(program, backend.description());
  EXPECT_EQ(layout.reserved(Space::host), 0);
  Context context(backend, layout);
  program(context);
}

// On every device, although on a CPU it is a matter of no bytes.
TEST(Staging, ARunThatStagesWhereItsRehearsalDidNotDepartsFromIt) {
  const auto program = [](Context& context, bool stages) {
    context.phase(Phase::save, [&] {
      const Tensor tensor = context.allocate({.name = "tensor", .shape = {100}});
      if (stages) context.upload(tensor, numbered(400));
    });
  };
  for (const bool rehearsed : {false, true}) {
    CpuBackend cpu(1);
    LateBackend gpu(kGpu);
    for (Backend* backend : {static_cast<Backend*>(&cpu), static_cast<Backend*>(&gpu)}) {
      const Layout layout =
          rehearse([&](Context& context) { program(context, rehearsed); }, backend->description());
      Context context(*backend, layout);
      EXPECT_THAT(message_of([&] { program(context, !rehearsed); }),
                  AllOf(HasSubstr("departs from its rehearsal"), HasSubstr("staging piece")));
      program(context, rehearsed);  // and goes on
    }
  }
}

TEST(Staging, RefusesATensorThatAnotherStreamMayStillWorkOn) {
  Context context(kGpu);
  EXPECT_THAT(message_of([&] {
                context.phase(Phase::step, [&] {
                  const Tensor tensor = context.allocate({.name = "weight", .shape = {8}});
                  context.wait(StreamId::copy, context.record(StreamId::main));
                  context.run_on(StreamId::copy, {&tensor}, [](const Stream&) {});
                  context.upload(tensor, {});
                });
              }),
              AllOf(HasSubstr("'weight' is uploaded or downloaded"), HasSubstr("let main wait")));
}

TEST(Staging, RefusesHostMemoryOfAnotherSizeAndGivesItsOwnBack) {
  const auto program = [](Context& context, std::int64_t bytes) {
    context.phase(Phase::step, [&] {
      const Tensor tensor = context.allocate({.name = "tensor", .shape = {100}});
      context.upload(tensor, numbered(bytes));
    });
  };
  const Layout layout = rehearse([&](Context& context) { program(context, 400); }, kGpu);
  LateBackend backend(kGpu);
  Context context(backend, layout);
  EXPECT_THROW(program(context, 399), Error);
  program(context, 400);
  EXPECT_EQ(context.ledger().usage(Space::host).live_bytes, 0);
}

}  // namespace
}  // namespace headroom

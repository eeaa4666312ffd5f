// The whole idea from outside: rehearse, pack, run.
#include <headroom/headroom.h>

#include <cstdio>

namespace {

double program(headroom::Context& context) {
  double sum = 0;
  context.phase(headroom::Phase::step, [&] {
    const headroom::Tensor values = context.allocate({.name = "values", .shape = {1000}});
    headroom::random_fill(context, values, headroom::Random(7), 0, 1);
    context.run([&](const headroom::Stream&) {
      for (int i = 0; i < 1000; ++i) sum += values.data<float>()[i];
    });
  });
  return sum;
}

}  // namespace

int main() {
  headroom::Context rehearsal(headroom::describe_cpu());
  program(rehearsal);
  const headroom::Layout layout = headroom::make_layout(std::move(rehearsal).take_ledger());
  headroom::CpuBackend backend(2);
  headroom::Context run(backend, layout);
  const double sum = program(run);
  std::printf("reserved %lld bytes, sum %.3f\n",
              static_cast<long long>(backend.reserved_bytes(headroom::Space::device)), sum);
  return backend.reserved_bytes(headroom::Space::device) == 4096 && sum > 400 && sum < 600 ? 0 : 1;
}

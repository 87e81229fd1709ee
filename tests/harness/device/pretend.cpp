// A device that computes on the host and refuses what a card refuses. It takes torch's PrivateUse1 slot.
//
// Every operator runs as the CPU's kernel on tensors that share the device's memory. Before, it is refused where a card
// would refuse it: tensors of two devices, a generator of the CPU, memory that was freed or that is not there, a
// process that was forked, and everything after an index that a kernel found out of bounds.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
const Device HERE(KIND, 0);
constexpr int ASSERTED = 710;  // cudaErrorAssert
constexpr unsigned char FREED = 0xff;

std::atomic<bool> dead{false};
std::atomic<pid_t> opened_by{0};
std::atomic<size_t> taken{0}, room{size_t(1) << 32};
std::mutex guard;
std::map<const void*, size_t> blocks;  // what is allocated now

bool ours(const Tensor& tensor) { return tensor.device().type() == KIND; }

void require_alive() {
  pid_t nobody = 0;
  opened_by.compare_exchange_strong(nobody, getpid());
  TORCH_CHECK(opened_by == getpid(), "Cannot re-initialize the pretend device in a forked process.");
  if (dead)
    throw c10::AcceleratorError({__func__, __FILE__, uint32_t(__LINE__)}, ASSERTED,
                                "pretend error: device-side assert triggered");
}

// ------------------------------------------------------------------------------------------------------- memory

void take(const void* at, size_t size) {
  TORCH_CHECK_WITH(OutOfMemoryError, taken + size <= room, "pretend out of memory. Tried to allocate ", size,
                   " bytes; ", taken.load(), " of ", room.load(), " are taken.");
  taken += size;
  std::lock_guard<std::mutex> lock(guard);
  blocks[at] = size;
}

// What the device keeps of a block: the host's memory, which is overwritten when it is given back.
struct Block {
  c10::DataPtr memory;
  size_t size;
  ~Block() {
    {
      std::lock_guard<std::mutex> lock(guard);
      blocks.erase(memory.get());
    }
    taken -= size;
    std::memset(memory.get(), FREED, size);
  }
};

c10::DataPtr as_block(c10::DataPtr memory, size_t size) {
  void* at = memory.get();
  if (at == nullptr) return {nullptr, HERE};
  take(at, size);
  return {at, new Block{std::move(memory), size}, [](void* block) { delete static_cast<Block*>(block); }, HERE};
}

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    require_alive();
    return as_block(c10::GetAllocator(c10::DeviceType::CPU)->allocate(size), size);
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  bool initialized() override { return opened_by != 0; }
  void emptyCache(c10::MempoolId_t) override { require_alive(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override { return {}; }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {}
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {room - taken, room}; }
};
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

// --------------------------------------------------------------------------------------------- generators, hooks

struct Draws final : c10::GeneratorImpl {
  at::Generator plain = at::detail::createCPUGenerator();
  Draws() : c10::GeneratorImpl(HERE, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { plain.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return plain.current_seed(); }
  uint64_t seed() override { return plain.seed(); }
  void set_state(const c10::TensorImpl& state) override { plain.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return plain.unsafeGetGeneratorImpl()->get_state(); }
  Draws* clone_impl() const override {
    auto* other = new Draws();
    other->plain = plain.clone();
    return other;
  }
};

at::Generator& of_the_device() {
  static at::Generator draws = at::make_generator<Draws>();
  return draws;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return opened_by != 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return of_the_device(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<Draws>(); }
  Device getDeviceFromPtr(void*) const override { return HERE; }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device) const override { return HERE; }
  Device getDevice() const override { return HERE; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  c10::Stream getStream(Device) const override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::Stream exchangeStream(c10::Stream) const override { return getStream(HERE); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

// ------------------------------------------------------------------------------------- tensors lent to the host

// One call's tensors: those of the device as tensors of the host that share their memory, and back.
struct Loan {
  std::map<const void*, c10::Storage> storages;  // those of the device, by where they begin

  Tensor lend(const Tensor& tensor) {
    const auto& storage = tensor.storage();
    void* at = storage.data_ptr().get();
    if (at != nullptr) {
      std::lock_guard<std::mutex> lock(guard);
      TORCH_CHECK(blocks.count(at), "pretend error: an illegal memory access was encountered");
    }
    storages.emplace(at, storage);
    c10::Storage plain(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(at, c10::DeviceType::CPU), nullptr, false);
    return shaped(std::move(plain), c10::DispatchKey::CPU, tensor);
  }

  Tensor take_back(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu()) return tensor;
    void* at = tensor.storage().data_ptr().get();
    auto known = storages.find(at);
    if (at == nullptr || known == storages.end()) {
      auto size = tensor.storage().nbytes();
      auto held = c10::DataPtr(at, new c10::Storage(tensor.storage()), [](void* kept) { delete static_cast<c10::Storage*>(kept); },
                               c10::DeviceType::CPU);
      c10::Storage made(c10::Storage::use_byte_size_t(), size, as_block(std::move(held), size), &memory, true);
      known = storages.insert_or_assign(at, made).first;
    }
    return shaped(known->second, c10::DispatchKey::PrivateUse1, tensor);
  }

  static Tensor shaped(c10::Storage storage, c10::DispatchKey key, const Tensor& like) {
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.is_conj()) made._set_conj(true);
    if (like.is_neg()) made._set_neg(true);
    return made;
  }
};

// ------------------------------------------------------------------------------------------ what a card refuses

const std::set<std::string> INDEXES_FROM_HOST{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
const std::set<std::string> ASSERTS{
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::index_select", "aten::index_add",
    "aten::index_add_", "aten::index_copy", "aten::index_copy_", "aten::gather", "aten::scatter", "aten::scatter_",
    "aten::scatter_add", "aten::scatter_add_", "aten::embedding", "aten::take", "aten::nll_loss_forward", "aten::nll_loss2d_forward",
    "aten::one_hot"};

// Refuse tensors of two devices. A single number of the host may be read, and so may places of ``index``.
void require_one_device(const c10::FunctionSchema& schema, const std::vector<IValue>& given) {
  bool any = false;
  for (const auto& value : given) {
    if (value.isTensor()) any |= value.toTensor().defined() && ours(value.toTensor());
    if (value.isTensorList() || value.isOptionalTensorList())
      for (const IValue& each : value.toListRef()) any |= each.isTensor() && each.toTensor().defined() && ours(each.toTensor());
  }
  if (!any) return;
  const bool places = INDEXES_FROM_HOST.count(schema.name()) && given[0].isTensor() && ours(given[0].toTensor());
  auto look = [&](const Tensor& tensor, bool written, bool listed) {
    if (!tensor.defined() || ours(tensor) || (listed && places) || (tensor.dim() == 0 && !written)) return;
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", HERE, " and ",
                tensor.device(), "! (", schema.name(), ")");
  };
  for (size_t at = 0; at < given.size(); ++at) {
    const auto* alias = schema.arguments()[at].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (given[at].isTensor()) look(given[at].toTensor(), written, false);
    if (given[at].isTensorList() || given[at].isOptionalTensorList())
      for (const IValue& each : given[at].toListRef())
        if (each.isTensor()) look(each.toTensor(), written, true);
  }
}

// ------------------------------------------------------------------------------------------- sums in any order

Tensor mixed(int64_t count) {
  static std::mt19937_64 chance{std::random_device{}()};
  return at::randperm(count, at::make_generator<at::CPUGeneratorImpl>(chance()), at::TensorOptions().dtype(at::kLong));
}

// Change the order in which an operator adds, where a card adds by atomics; ``given`` are tensors of the host.
void add_in_any_order(const std::string& name, std::vector<IValue>& given) {
  const bool settled = at::globalContext().deterministicAlgorithms();
  if (name == "aten::bincount" && !given[1].isNone()) {  // a card has no other way
    at::globalContext().alertNotDeterministic("bincount_pretend");
    auto order = mixed(given[0].toTensor().numel());
    given[0] = given[0].toTensor().index_select(0, order);
    given[1] = given[1].toTensor().index_select(0, order);
  }
  if (settled) return;
  if ((name == "aten::index_add" || name == "aten::index_add_") && given[2].toTensor().dim() == 1) {
    auto order = mixed(given[2].toTensor().numel());
    given[2] = given[2].toTensor().index_select(0, order);
    given[3] = given[3].toTensor().index_select(given[1].toInt(), order);
  }
  if ((name == "aten::scatter_add" || name == "aten::scatter_add_") && given[2].toTensor().dim() > 0) {
    auto index = given[2].toTensor(), source = given[3].toTensor();
    auto along = given[1].toInt();
    for (int64_t each = 0; each < index.dim(); ++each) source = source.narrow(each, 0, index.size(each));
    auto order = mixed(index.size(along));
    given[2] = index.index_select(along, order);
    given[3] = source.index_select(along, order);
  }
  if (name == "aten::embedding_dense_backward") {
    auto places = given[1].toTensor().reshape(-1);
    auto order = mixed(places.numel());
    given[1] = places.index_select(0, order);
    given[0] = given[0].toTensor().reshape({places.numel(), -1}).index_select(0, order);
  }
  if (name.rfind("aten::index_put", 0) == 0 || name == "aten::_index_put_impl_") {
    auto lists = given[1].toListRef();
    const auto values = given[2].toTensor();
    if (!given[3].toBool() || lists.size() != 1 || !lists[0].isTensor() || values.dim() == 0) return;
    auto places = lists[0].toTensor();
    if (places.dim() != 1 || places.scalar_type() != at::kLong || values.size(0) != places.numel()) return;
    auto order = mixed(places.numel());
    c10::List<std::optional<Tensor>> turned;
    turned.push_back(places.index_select(0, order));
    given[1] = turned;
    given[2] = values.index_select(0, order);
  }
}

// ------------------------------------------------------------------------------------------------ every operator

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  require_alive();
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  std::vector<IValue> given(stack->end() - count, stack->end());
  require_one_device(schema, given);

  Loan loan;
  std::vector<IValue> handed = given;
  auto lent = [&](const Tensor& tensor) { return tensor.defined() && ours(tensor) ? loan.lend(tensor) : tensor; };
  for (size_t at = 0; at < count; ++at) {
    IValue& value = handed[at];
    const auto& argument = schema.arguments()[at];
    if (value.isTensor()) {
      const auto* alias = argument.alias_info();
      const Tensor tensor = value.toTensor();
      const bool empty_out = tensor.defined() && ours(tensor) && tensor.numel() == 0 && alias && alias->isWrite();
      value = empty_out ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU)) : lent(tensor);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(lent(each));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const IValue& each : value.toListRef())
        list.push_back(each.isTensor() ? std::optional<Tensor>(lent(each.toTensor())) : std::nullopt);
      value = list;
    } else if (value.isDevice()) {
      value = Device(c10::DeviceType::CPU);
    } else if (argument.name() == "generator") {
      at::Generator chosen = value.isNone() ? of_the_device() : value.toGenerator();
      TORCH_CHECK(chosen.device().type() == KIND, "Expected a '", HERE, "' generator but found one of ", chosen.device());
      value = static_cast<Draws*>(chosen.unsafeGetGeneratorImpl())->plain;
    }
  }
  add_in_any_order(schema.name(), handed);

  torch::jit::Stack inner(handed.begin(), handed.end());
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &inner);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    const bool outside = what.find("out of range") != std::string::npos || what.find("out of bounds") != std::string::npos;
    if (!outside || !ASSERTS.count(schema.name())) throw;
    dead = true;
    require_alive();
  }

  // What was written keeps the device's memory, but where the operator gave it another shape or more of it.
  for (size_t at = 0; at < count; ++at) {
    const auto* alias = schema.arguments()[at].alias_info();
    if (alias == nullptr || !alias->isWrite() || !given[at].isTensor() || !handed[at].isTensor()) continue;
    const Tensor device = given[at].toTensor(), host = handed[at].toTensor();
    if (!device.defined() || !ours(device)) continue;
    if (host.storage().data_ptr().get() != device.storage().data_ptr().get() && host.numel() > 0)
      device.unsafeGetTensorImpl()->set_storage_keep_dtype(loan.take_back(host).storage());
    if (host.sizes() != device.sizes() || host.strides() != device.strides())
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }

  torch::jit::drop(*stack, count);
  for (size_t at = 0; at < inner.size(); ++at) {
    const auto* alias = schema.returns()[at].alias_info();
    bool written = false;
    if (alias != nullptr && alias->isWrite())
      for (size_t argument = 0; argument < count && !written; ++argument) {
        const auto* other = schema.arguments()[argument].alias_info();
        if (other != nullptr && *other == *alias) {
          stack->push_back(given[argument]);
          written = true;
        }
      }
    if (written) continue;
    if (inner[at].isTensor()) {
      stack->push_back(loan.take_back(inner[at].toTensor()));
    } else if (inner[at].isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : inner[at].toTensorVector()) list.push_back(loan.take_back(each));
      stack->push_back(list);
    } else {
      stack->push_back(inner[at]);
    }
  }
}

// -------------------------------------------------------------------- the few operators that need their own kernel

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  require_alive();
  Loan loan;
  return loan.take_back(at::empty_strided(size, stride, at::TensorOptions().dtype(dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())))));
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device>,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  require_alive();
  Loan loan;
  return loan.take_back(at::empty(size, at::TensorOptions().dtype(dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()))), format));
}

// A zero without memory, which derivatives in forward mode begin with.
Tensor zero(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  require_alive();
  const auto type = c10::scalarTypeToTypeMeta(dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
  c10::Storage none(c10::Storage::use_byte_size_t(), c10::multiply_integers(size) * type.itemsize(), c10::DataPtr(nullptr, HERE), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(none), c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}), type);
  made.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return made;
}

Tensor copy(const Tensor& from, const Tensor& to, bool) {
  require_alive();
  Loan loan;
  at::NoGradGuard plain;
  (ours(to) ? loan.lend(to) : to).copy_(ours(from) ? loan.lend(from) : from);
  return to;
}

Tensor& set_storage(Tensor& tensor, c10::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  require_alive();
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b, c10::IntArrayRef stride, c10::IntArrayRef padding,
                   c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups) {
  require_alive();
  Loan loan;
  auto bias = b.has_value() && b->defined() ? std::optional<Tensor>(loan.lend(*b)) : std::nullopt;
  return loan.take_back(at::convolution(loan.lend(x), loan.lend(w), bias, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& slope, const Tensor& x, const Tensor& w, c10::IntArrayRef stride,
                                                        c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                                                        c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  require_alive();
  Loan loan;
  const int64_t outputs = slope.size(1);
  auto [one, two, three] = at::convolution_backward(loan.lend(slope), loan.lend(x), loan.lend(w), c10::OptionalIntArrayRef(outputs),
                                                    stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {loan.take_back(one), loan.take_back(two), loan.take_back(three)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &zero);
  m.impl("_copy_from", &copy);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

// What a test asks of the device, and does to it.
TORCH_LIBRARY(pretend, m) {
  m.def("opened() -> bool", [] { return opened_by == getpid(); });
  m.def("forked() -> bool", [] { return opened_by != 0 && opened_by != getpid(); });
  m.def("revive() -> ()", [] { dead = false; });
  m.def("taken() -> int", [] { return int64_t(taken); });
  m.def("room(int bytes) -> ()", [](int64_t bytes) { room = size_t(bytes); });
  m.def("seed(int seed) -> ()", [](int64_t seed) { of_the_device().set_current_seed(uint64_t(seed)); });
  m.def("alias(Tensor(a!) to, Tensor of) -> ()", [](Tensor to, const Tensor& of) {  // a pointer that outlives its block
    c10::Storage other(c10::Storage::use_byte_size_t(), of.storage().nbytes(), c10::DataPtr(of.storage().mutable_data(), HERE), &memory, false);
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(other));
    to.unsafeGetTensorImpl()->set_sizes_and_strides(of.sizes(), of.strides(), 0);
  });
  m.def("rng_state() -> Tensor", [] { return of_the_device().get_state(); });
  m.def("set_rng_state(Tensor state) -> ()", [](const Tensor& state) { of_the_device().set_state(state); });
}

}  // namespace

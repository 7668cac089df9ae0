// What a call asks of the driver: fills, copies and launches in its context, without the GIL: a part of launcher.cpp.

struct Failure {
  int status;
  int64_t step;
  bool raised;  // by a step in Python
};

int launch_kernel(const pf_layout& l, const pf_step& s, int64_t* cells, void** parameters, void* stream) {
  for (int64_t k = 0; k < s.ncells; ++k) parameters[k] = cells + s.cells[k];
  const unsigned g[3] = {unsigned(s.grid[0]), unsigned(s.grid[1]), unsigned(s.grid[2])};
  const unsigned b[3] = {unsigned(s.block[0]), unsigned(s.block[1]), unsigned(s.block[2])};
  const unsigned shared = unsigned(s.shared);
  if (s.cooperative)
    return l.driver->launch_cooperative(s.function, g[0], g[1], g[2], b[0], b[1], b[2], shared, stream, parameters);
  return l.driver->launch(s.function, g[0], g[1], g[2], b[0], b[1], b[2], shared, stream, parameters, nullptr);
}

// A function of two to four addresses, called with the GIL held; false with an exception set.
bool call_with(Object function, const uint64_t* numbers, int64_t count) {
  Object made[4] = {};
  const References all{made, count};
  for (int64_t k = 0; k < count; ++k)
    if (!(made[k] = py.new_address(numbers[k]))) return false;
  Object nothing = py.call(function, made, size_t(count), nullptr);
  if (nothing) py.decref(nothing);
  return nothing != nullptr;
}

Failure all_steps(const pf_layout& l, int64_t* cells, const uint64_t* addresses, void** parameters, void* stream,
                  void** thread) {
  for (int64_t k = 0; k < l.nsteps; ++k) {
    const pf_step& s = l.steps[k];
    int status = 0;
    if (s.kind == kLaunch) {
      if (s.grid[0] <= 0) continue;
      status = launch_kernel(l, s, cells, parameters, stream);
    } else if (s.kind == kFill) {
      status = l.driver->fill(addresses[s.source] + uint64_t(s.offset), 0, size_t(s.nbytes), stream);
    } else if (s.kind == kCopy) {
      const uint64_t from = addresses[s.source] + uint64_t(s.offset), to = addresses[s.to] + uint64_t(s.to_offset);
      status = l.driver->copy(to, from, size_t(s.nbytes), stream);
    } else {
      const uint64_t numbers[2] = {reinterpret_cast<uint64_t>(cells), reinterpret_cast<uint64_t>(stream)};
      py.take_gil(*thread);
      const bool done = call_with(s.call, numbers, 2);
      *thread = py.release_gil();
      if (!done) return Failure{0, k, true};
    }
    if (status) return Failure{status, k, false};
  }
  return Failure{0, -1, false};
}

// In the context of the device, without the GIL.
Failure in_context(const pf_layout& l, int64_t* cells, const uint64_t* addresses, void** parameters, void* stream) {
  const pf_driver& d = *l.driver;
  void* thread = py.release_gil();
  void* current = nullptr;
  int status = d.get_current(&current);
  const bool foreign = !status && current != d.context;
  if (foreign) status = d.push(d.context);
  Failure failure{status, -1, false};
  if (!status) {
    failure = all_steps(l, cells, addresses, parameters, stream, &thread);
    if (foreign) {
      status = d.pop(&current);
      if (status && !failure.status && !failure.raised) failure = Failure{status, -1, false};
    }
  }
  py.take_gil(thread);
  return failure;
}

// Queues everything; false with an exception set.
bool run(const pf_layout& l, int64_t* cells, const uint64_t* addresses, void** parameters, uint64_t stream) {
  if (!l.driver) {
    const uint64_t numbers[4] = {reinterpret_cast<uint64_t>(cells), reinterpret_cast<uint64_t>(addresses), stream,
                                 reinterpret_cast<uint64_t>(l.steps)};
    return call_with(l.run, numbers, 4);
  }
  const Failure failure = in_context(l, cells, addresses, parameters, reinterpret_cast<void*>(stream));
  if (failure.raised) return false;
  if (!failure.status) return true;
  const uint64_t numbers[2] = {uint64_t(failure.status), uint64_t(failure.step)};
  call_with(l.failed, numbers, 2);
  return false;
}

void fill_cells(const pf_layout& l, const uint64_t* addresses, int64_t* cells) {
  std::memcpy(cells, l.cells, size_t(l.ncells) * sizeof(int64_t));
  for (int64_t k = 0; k < l.nputs; ++k)
    cells[l.puts[k].cell] = int64_t(addresses[l.puts[k].source] + uint64_t(l.puts[k].offset));
}

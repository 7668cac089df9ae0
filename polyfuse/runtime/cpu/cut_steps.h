// How a step is cut into chunks, at sizes that are known when a call comes: a part of launcher.cpp and of exported
// libraries.

#pragma once

struct pf_figures {
  int64_t threads, pool_threads, chunks, most_chunks, fewest_chunks, fewest_in_series, chunk_instances,
      parallel_work;
};

// What a step is at these sizes.
struct pf_extent { int64_t count, instances, work; };

// The chunks of a step, as `executable._step` has them.
inline void cut(const pf_figures& f, const pf_extent& e, bool parallel, const int64_t* together,
                int64_t ntogether, int64_t least, pf_step* step) {
  const int64_t count = e.count > 0 ? e.count : 0;
  step->count = count;
  step->parallel = parallel && count > 1 && f.threads > 1 && (e.work >= f.parallel_work || step->rounds > 1);
  step->chunk = count > 1 ? count : 1;
  if (!step->parallel) return;
  int64_t parts = f.threads;
  if (f.threads >= f.pool_threads) {
    const int64_t fewest = step->rounds == 1 ? f.fewest_chunks : f.fewest_in_series;
    const int64_t mine = e.instances / f.threads / step->rounds / f.chunk_instances;
    parts *= f.chunks ? f.chunks : std::max(fewest, std::min(f.most_chunks, mine));
  }
  const int64_t chunk = std::max((count + parts - 1) / parts, std::min(least, count / f.threads));
  step->chunk = chunk;
  for (int64_t k = 0; k < ntogether; ++k) {
    const int64_t whole = (chunk + together[k] - 1) / together[k] * together[k];
    if (whole * f.threads > count) continue;
    step->chunk = whole;
    break;
  }
}

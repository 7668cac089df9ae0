"""Recurrences over time: steps of a grid, a state that runs backwards, one whose places are data."""

from __future__ import annotations

HEAT = """op f(x: f32[H, W]) -> (y: f32[H, W]) where H >= 3, W >= 3 {
  u[0, i, k] = x[i, k]
  u[t, i, k] = (0.25 * (u[t-1, i-1, k] + u[t-1, i+1, k] + u[t-1, i, k-1] + u[t-1, i, k+1])
      if 1 <= i < H - 1 and 1 <= k < W - 1 else u[t-1, i, k]) for t in 1..9, i in 0..H, k in 0..W
  y[i, k] = u[8, i, k]
}"""
BACKWARDS = """op f(x: f32[T, N]) -> (y: f32[N]) where T >= 1, N >= 1 {
  u[T-1, i] = x[T-1, i]
  u[t, i] = 0.5 * u[t+1, (i + 1) % N] + x[t, i] for t in 0..T-1
  y[i] = u[0, i]
}"""
CHOSEN = """op f(x: f32[N], z: i64[N]) -> (y: f32[N]) where N >= 1 {
  u[0, i] = x[i]
  u[t, i] = 0.5 * u[t-1, z[i]] + x[i] for t in 1..6
  y[i] = u[5, i]
}"""

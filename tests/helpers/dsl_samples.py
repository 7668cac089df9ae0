"""Programs that the parser and formatter tests share."""

LAYER_NORM = """\
# residual add + layer normalisation
op add_layer_norm(x: f32[T, H], r: f32[T, H], gamma: f32[H], beta: f32[H], eps: f32 = 1e-5)
    -> (y: f32[T, H]) {
  s[t, h]  = x[t, h] + r[t, h]
  mu[t]    = sum[h](s[t, h]) / H
  var[t]   = sum[h]((s[t, h] - mu[t]) ** 2) / H
  y[t, h]  = (s[t, h] - mu[t]) * rsqrt(var[t] + eps) * gamma[h] + beta[h]
}
"""

EVERYTHING = """\
# head

# about the imports
import "norms.pf"  # first
import "deep/more.pf"

op everything[F: float, G: float](
    x: F[B..., H],  # input
    # the table
    table: f32[N, 3*H], inout p: G[2*N + 1], idx: i32[T],
    lr: f32 = -1e-3, flag: bool = true,
) -> (y: F[B..., H], l: f32)  # results
  where H % 4 == 0, N >= 3 and N < 1_000 { # body
  let agg: f32[N, H] = 0; agg[idx[e], h] += table[e, h]

  # scatter
  agg[idx[e], h] max= table[e, h]   # twice
  agg[idx[e], h] min= -table[e, h] ** -2
  m = max[i in 0..2, j in 0..N-1](x[i*2, j + 1] if 0 <= i + j < N else 0.0)
  (a, b) = softmax(x, # inner
      2 * l, eps=1e-5, max=3)
  c[0, j] = x[0, j]
  c[t, j] = c[t-1, j] +
    x[t, j] for t in 1..T, j in 0..H // 2
  mean[b..., h] = sum[b...](x[b..., h]) - (1 - 2) - not_a_keyword

  # the last word
}   # end

op tiny() { }  # tail
# eof
"""

NAMES = """\
op int(main: f32[N], __asm__: f32[N], sum: f32[N], in: f32[N], op: f32) -> (let: f32[N], where: f32) {
  let[i] = main[i] + __asm__[i] * sum[i] + in[i] - op
  mean[i] = max[in in 0..2](let[in])
  max = min[i](mean[i])
  import = max
  inout = op + import
  where = sum[i](sum[i]) if inout > 0 else f(let=inout, max=3, op=op)
}
op where(inout inout: f32[N]) -> (import: f32) where inout > 0, op > where, (inout and in) {
  let max= 3
  let if_ : f32
  import = true and False
}
"""

SAMPLES = {
    "layer_norm": LAYER_NORM,
    "everything": EVERYTHING,
    "names": NAMES,
    "empty": "",
    "comment": "# only",
}

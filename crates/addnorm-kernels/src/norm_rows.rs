//! The arithmetic of a norm, some rows at a time.

use crate::element::Element;
use crate::norm::Norm;
use crate::simd::{total, vectorised};

/// Independent partial sums: as many as two registers of the widest instruction set hold.
const LANES: usize = 16;

/// Rows whose contributions to a gain's gradient are summed in the storage type before they join the `f64` sum.
const GROUP: usize = 8;

/// Sum of `term(i)` in `f64`, in lanes, in a fixed order.
#[inline(always)]
fn sum(count: usize, term: impl Fn(usize) -> f64) -> f64 {
    let mut lanes = [0f64; LANES];
    let whole = count - count % LANES;
    for start in (0..whole).step_by(LANES) {
        for lane in 0..LANES {
            lanes[lane] += term(start + lane);
        }
    }
    let mut total = total(lanes);
    for i in whole..count {
        total += term(i);
    }
    total
}

/// Mean and reciprocal root of a row, in `f64`: a large common offset costs no accuracy and a square of a
/// large `f32` does not overflow.
#[inline(always)]
fn statistics<E: Element>(norm: &Norm, row: &[E]) -> (f64, f64) {
    let width = row.len() as f64;
    let mean = if norm.centre { sum(row.len(), |i| row[i].wide()) / width } else { 0.0 };
    let variance = sum(row.len(), |i| (row[i].wide() - mean) * (row[i].wide() - mean)) / width;
    (mean, 1.0 / (variance + norm.epsilon).sqrt())
}

/// A row's statistics in the storage type.
#[derive(Clone, Copy, Default)]
struct Narrow<E> {
    /// The mean in two parts: what is near it loses nothing when the first is taken off, and the second is
    /// what the first was rounded by.
    mean: E,
    rest: E,
    reciprocal: E,
}

impl<E: Element> Narrow<E> {
    /// None where the type cannot hold the reciprocal well: such rows are computed in `f64`.
    #[inline(always)]
    fn of(mean: f64, reciprocal: f64) -> Option<Self> {
        let high = E::of(mean);
        let fits = (1e-30..1e30).contains(&reciprocal) && mean.abs() < 1e30;
        fits.then(|| Narrow { mean: high, rest: E::of(mean - high.wide()), reciprocal: E::of(reciprocal) })
    }

    #[inline(always)]
    fn normal(self, x: E) -> E {
        ((x - self.mean) - self.rest) * self.reciprocal
    }
}

vectorised! {
    /// Normalises rows of `x`, or of `y` itself, into `y`, and leaves each row's mean and reciprocal root.
    pub(crate) fn forward_rows<E: Element>(
        norm: &Norm,
        y: &mut [E],
        x: Option<&[E]>,
        gain: Option<&[E]>,
        bias: Option<&[E]>,
        width: usize,
        kept: &mut [f64],
    ) {
        for (number, (y, kept)) in y.chunks_exact_mut(width).zip(kept.chunks_exact_mut(2)).enumerate() {
            match x {
                Some(x) => {
                    let x = &x[number * width..][..width];
                    (kept[0], kept[1]) = statistics(norm, x);
                    normalise(norm, y, |_, i| x[i], gain, bias, (kept[0], kept[1]));
                }
                None => {
                    (kept[0], kept[1]) = statistics(norm, y);
                    normalise(norm, y, |y, _| y, gain, bias, (kept[0], kept[1]));
                }
            }
        }
    }

    /// Writes or adds the gradient by `x` into `dx`. Where `sums` is not empty, adds the gradients by gain and
    /// bias to its two halves.
    pub(crate) fn backward_rows<E: Element>(
        norm: &Norm,
        dx: &mut [E],
        adds: bool,
        x: &[E],
        dy: &[E],
        gain: Option<&[E]>,
        width: usize,
        kept: &[f64],
        sums: &mut [f64],
    ) {
        let size = GROUP * width;
        for (group, dx) in dx.chunks_mut(size).enumerate() {
            let rows = dx.len() / width;
            let (x, dy) = (&x[group * size..][..dx.len()], &dy[group * size..][..dx.len()]);
            let kept = &kept[2 * group * GROUP..][..2 * rows];
            let mut narrow = [Narrow::<E>::default(); GROUP];
            let mut all_fit = true;
            for row in 0..rows {
                let (mean, reciprocal) = (kept[2 * row], kept[2 * row + 1]);
                let (x, dy) = (&x[row * width..][..width], &dy[row * width..][..width]);
                let dx = &mut dx[row * width..][..width];
                match Narrow::of(mean, reciprocal) {
                    Some(fit) => {
                        narrow[row] = fit;
                        backward_row(norm, dx, adds, x, dy, gain, fit);
                    }
                    None => {
                        all_fit = false;
                        backward_row_wide(norm, dx, adds, x, dy, gain, mean, reciprocal);
                    }
                }
            }
            if sums.is_empty() {
                continue;
            }
            let (dgain, dbias) = sums.split_at_mut(width);
            if all_fit && rows == GROUP {
                parameter_gradients(dgain, dbias, norm.scale, x, dy, &narrow);
            } else {
                for row in 0..rows {
                    let (mean, reciprocal) = (kept[2 * row], kept[2 * row + 1]);
                    for i in 0..width {
                        let d = dy[row * width + i].wide() * norm.scale;
                        dgain[i] += d * (x[row * width + i].wide() - mean) * reciprocal;
                        dbias[i] += d;
                    }
                }
            }
        }
    }
}

/// `y = scale * ((offset + gain) * normal + bias)` for one row.
#[inline(always)]
fn normalise<E: Element>(
    norm: &Norm,
    y: &mut [E],
    x: impl Fn(E, usize) -> E,
    gain: Option<&[E]>,
    bias: Option<&[E]>,
    (mean, reciprocal): (f64, f64),
) {
    let width = y.len();
    let Some(narrow) = Narrow::of(mean, reciprocal) else {
        for i in 0..width {
            let normal = (x(y[i], i).wide() - mean) * reciprocal;
            let scaled = normal * gain.map_or(1.0, |gain| gain[i].wide() + norm.gain_offset);
            y[i] = E::of((scaled + bias.map_or(0.0, |bias| bias[i].wide())) * norm.scale);
        }
        return;
    };
    let (offset, scale) = (E::of(norm.gain_offset), E::of(norm.scale));
    match (gain, bias) {
        (Some(gain), Some(bias)) => {
            let (gain, bias) = (&gain[..width], &bias[..width]);
            for i in 0..width {
                y[i] = (narrow.normal(x(y[i], i)) * (gain[i] + offset) + bias[i]) * scale;
            }
        }
        (Some(gain), None) => {
            let gain = &gain[..width];
            for i in 0..width {
                y[i] = narrow.normal(x(y[i], i)) * (gain[i] + offset) * scale;
            }
        }
        _ => {
            for i in 0..width {
                y[i] = narrow.normal(x(y[i], i)) * scale;
            }
        }
    }
}

/// With `n` the normal row and `g = scale * (offset + gain) * dy`: `dx = (g - mean(g) - n mean(g n)) / root`;
/// without centring the mean of `g` is left out.
#[inline(always)]
fn backward_row<E: Element>(
    norm: &Norm,
    dx: &mut [E],
    adds: bool,
    x: &[E],
    dy: &[E],
    gain: Option<&[E]>,
    row: Narrow<E>,
) {
    match gain {
        Some(gain) => {
            let (offset, gain) = (E::of(norm.gain_offset), &gain[..x.len()]);
            backward_scaled(norm, dx, adds, x, |i| (gain[i] + offset) * dy[i], row);
        }
        None => backward_scaled(norm, dx, adds, x, |i| dy[i], row),
    }
}

#[inline(always)]
fn backward_scaled<E: Element>(
    norm: &Norm,
    dx: &mut [E],
    adds: bool,
    x: &[E],
    scaled: impl Fn(usize) -> E,
    row: Narrow<E>,
) {
    let width = x.len();
    let along = E::of(sum(width, |i| (scaled(i) * row.normal(x[i])).wide()) / width as f64);
    let level = if norm.centre { E::of(sum(width, |i| scaled(i).wide()) / width as f64) } else { E::default() };
    let factor = row.reciprocal * E::of(norm.scale);
    if adds {
        for i in 0..width {
            dx[i] += factor * (scaled(i) - level - row.normal(x[i]) * along);
        }
    } else {
        for i in 0..width {
            dx[i] = factor * (scaled(i) - level - row.normal(x[i]) * along);
        }
    }
}

/// The same in `f64`, for rows whose statistics `f32` cannot hold.
fn backward_row_wide<E: Element>(
    norm: &Norm,
    dx: &mut [E],
    adds: bool,
    x: &[E],
    dy: &[E],
    gain: Option<&[E]>,
    mean: f64,
    reciprocal: f64,
) {
    let width = x.len();
    let scaled = |i: usize| gain.map_or(1.0, |gain| gain[i].wide() + norm.gain_offset) * dy[i].wide() * norm.scale;
    let normal = |i: usize| (x[i].wide() - mean) * reciprocal;
    let along = sum(width, |i| scaled(i) * normal(i)) / width as f64;
    let level = if norm.centre { sum(width, scaled) / width as f64 } else { 0.0 };
    for i in 0..width {
        let gradient = E::of(reciprocal * (scaled(i) - level - normal(i) * along));
        dx[i] = if adds { dx[i] + gradient } else { gradient };
    }
}

/// Adds what a whole group of rows gives. The group is summed in the storage type, eight numbers, and then
/// joins the `f64` sum.
#[inline(always)]
fn parameter_gradients<E: Element>(
    dgain: &mut [f64],
    dbias: &mut [f64],
    scale: f64,
    x: &[E],
    dy: &[E],
    rows: &[Narrow<E>; GROUP],
) {
    let width = dgain.len();
    let dbias = &mut dbias[..width];
    let x: [&[E]; GROUP] = std::array::from_fn(|row| &x[row * width..][..width]);
    let dy: [&[E]; GROUP] = std::array::from_fn(|row| &dy[row * width..][..width]);
    for i in 0..width {
        let (mut gain, mut bias) = (E::default(), E::default());
        for row in 0..GROUP {
            gain += dy[row][i] * rows[row].normal(x[row][i]);
            bias += dy[row][i];
        }
        dgain[i] += gain.wide() * scale;
        dbias[i] += bias.wide() * scale;
    }
}

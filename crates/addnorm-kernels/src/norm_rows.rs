//! The arithmetic of a norm, some rows at a time.

use crate::element::Element;
use crate::norm::Norm;
use crate::simd::{LANES, total_of_32, total_of_64, vectorised};

/// Lanes where the storage type is summed.
const WIDE: usize = 64;

/// Rows whose contributions to a gain's gradient are summed in the storage type before they join the `f64` sum.
const GROUP: usize = 8;

/// Mean and reciprocal root of a row, in `f64`. The sums are those of the distances from the row's first
/// number: exact, however large a common offset is, and no square of an `f32` overflows.
#[inline(always)]
fn statistics<E: Element>(norm: &Norm, row: &[E]) -> (f64, f64) {
    let width = row.len() as f64;
    let first = if norm.centre { row[0].wide() } else { 0.0 };
    let (mut sums, mut squares) = ([0f64; LANES], [0f64; LANES]);
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let distance = chunk[lane].wide() - first;
            sums[lane] += distance;
            squares[lane] += distance * distance;
        }
    }
    let (mut sum, mut square) = (total_of_32(sums), total_of_32(squares));
    for x in rest {
        let distance = x.wide() - first;
        sum += distance;
        square += distance * distance;
    }
    if !norm.centre {
        return (0.0, 1.0 / (square / width + norm.epsilon).sqrt());
    }
    let shift = sum / width;
    // Rounding may leave a little less than nothing of rows that are constant. A NaN stays one.
    let variance = square / width - shift * shift;
    let variance = if variance < 0.0 { 0.0 } else { variance };
    (first + shift, 1.0 / (variance + norm.epsilon).sqrt())
}

/// The sums over a row of `scaled` and of `scaled * normal`, with `scaled = (gain + offset) * dy`.
#[inline(always)]
fn gradient_sums<E: Element>(x: &[E], dy: &[E], gain: Option<&[E]>, offset: E, row: Narrow<E>) -> (f64, f64) {
    match gain {
        Some(gain) => sums_of(x, dy, gain, |gain, dy| (gain + offset) * dy, row),
        None => sums_of(x, dy, dy, |_, dy| dy, row),
    }
}

/// The same for common widths: eight numbers a lane are summed in the storage type, the lanes by halves, and
/// what that gives in `f64`.
#[inline(always)]
fn sums_of_wide<E: Element>(x: &[E], dy: &[E], gain: &[E], scaled: impl Fn(E, E) -> E, row: Narrow<E>) -> (f64, f64) {
    const RUN: usize = 8 * WIDE;
    let (mut level, mut along) = (0f64, 0f64);
    for ((x, dy), gain) in x.chunks(RUN).zip(dy.chunks(RUN)).zip(gain.chunks(RUN)) {
        let (mut levels, mut alongs) = ([E::default(); WIDE], [E::default(); WIDE]);
        let (xs, dys, gains) = (x.as_chunks::<WIDE>().0, dy.as_chunks::<WIDE>().0, gain.as_chunks::<WIDE>().0);
        for ((x, dy), gain) in xs.iter().zip(dys).zip(gains) {
            for lane in 0..WIDE {
                let scaled = scaled(gain[lane], dy[lane]);
                levels[lane] += scaled;
                alongs[lane] += scaled * row.normal(x[lane]);
            }
        }
        level += total_of_64(levels).wide();
        along += total_of_64(alongs).wide();
    }
    (level, along)
}

#[inline(always)]
fn sums_of<E: Element>(x: &[E], dy: &[E], gain: &[E], scaled: impl Fn(E, E) -> E, row: Narrow<E>) -> (f64, f64) {
    if x.len().is_multiple_of(WIDE) {
        return sums_of_wide(x, dy, gain, scaled, row);
    }
    let (mut levels, mut alongs) = ([0f64; LANES], [0f64; LANES]);
    let (xs, x_rest) = x.as_chunks::<LANES>();
    let (dys, dy_rest) = dy.as_chunks::<LANES>();
    let (gains, gain_rest) = gain.as_chunks::<LANES>();
    let (dys, gains) = (&dys[..xs.len()], &gains[..xs.len()]);
    for ((x, dy), gain) in xs.iter().zip(dys).zip(gains) {
        for lane in 0..LANES {
            let scaled = scaled(gain[lane], dy[lane]);
            levels[lane] += scaled.wide();
            alongs[lane] += (scaled * row.normal(x[lane])).wide();
        }
    }
    let (mut level, mut along) = (total_of_32(levels), total_of_32(alongs));
    for ((&x, &dy), &gain) in x_rest.iter().zip(dy_rest).zip(gain_rest) {
        let scaled = scaled(gain, dy);
        level += scaled.wide();
        along += (scaled * row.normal(x)).wide();
    }
    (level, along)
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
    let width = dx.len();
    let (x, dy, offset) = (&x[..width], &dy[..width], E::of(norm.gain_offset));
    let (level, along) = gradient_sums(x, dy, gain, offset, row);
    let level = if norm.centre { E::of(level / width as f64) } else { E::default() };
    let along = E::of(along / width as f64);
    let factor = row.reciprocal * E::of(norm.scale);
    match gain {
        Some(gain) => {
            let gain = &gain[..width];
            write_or_add(dx, adds, |i| factor * ((gain[i] + offset) * dy[i] - level - row.normal(x[i]) * along));
        }
        None => write_or_add(dx, adds, |i| factor * (dy[i] - level - row.normal(x[i]) * along)),
    }
}

#[inline(always)]
fn write_or_add<E: Element>(dx: &mut [E], adds: bool, value: impl Fn(usize) -> E) {
    if adds {
        for i in 0..dx.len() {
            dx[i] += value(i);
        }
    } else {
        for i in 0..dx.len() {
            dx[i] = value(i);
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
    let along = (0..width).map(|i| scaled(i) * normal(i)).sum::<f64>() / width as f64;
    let level = if norm.centre { (0..width).map(scaled).sum::<f64>() / width as f64 } else { 0.0 };
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
    let whole = width - width % LANES;
    for start in (0..whole).step_by(LANES) {
        let (mut gains, mut biases) = ([E::default(); LANES], [E::default(); LANES]);
        for (row, fit) in rows.iter().enumerate() {
            let (x, dy) = (&x[row * width + start..][..LANES], &dy[row * width + start..][..LANES]);
            for lane in 0..LANES {
                gains[lane] += dy[lane] * fit.normal(x[lane]);
                biases[lane] += dy[lane];
            }
        }
        let (dgain, dbias) = (&mut dgain[start..start + LANES], &mut dbias[start..start + LANES]);
        for lane in 0..LANES {
            dgain[lane] += gains[lane].wide() * scale;
            dbias[lane] += biases[lane].wide() * scale;
        }
    }
    for i in whole..width {
        for (row, fit) in rows.iter().enumerate() {
            let dy = dy[row * width + i];
            dgain[i] += (dy * fit.normal(x[row * width + i])).wide() * scale;
            dbias[i] += dy.wide() * scale;
        }
    }
}

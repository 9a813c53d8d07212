//! Statistics of a residual stream, in `f64`.

use burn::tensor::Tensor;

use crate::element::Element;
use crate::flex::{self, for_element};
use crate::simd::{self, vectorised};

/// The numbers of a tensor, widened.
pub fn to_f64<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    if flex::is_flex(tensor) {
        let tensor = flex::plain(tensor.clone());
        return for_element!(&tensor, E => flex::slice::<E>(&tensor).iter().map(|x| x.wide()).collect());
    }
    tensor.clone().into_data().iter::<f64>().collect()
}

/// Root of the mean square. NaN and infinity come through.
pub fn rms<const D: usize>(tensor: &Tensor<D>) -> f64 {
    let count = tensor.dims().iter().product::<usize>().max(1);
    (crate::optimizer::sum_of_squares(tensor) / count as f64).sqrt()
}

/// Mean cosine between the tokens of one sequence, over all pairs of different tokens and all sequences.
/// 1 means that every token is alike.
///
/// `x: [batch, time, d]`. A row of zeros has cosine 0 with every other. NaN for fewer than two tokens.
pub fn mean_token_cosine(x: &Tensor<3>) -> f64 {
    let [batch, time, width] = x.dims();
    let values = to_f64(x);
    let mut total = 0.0;
    for sequence in values.chunks_exact((time * width).max(1)) {
        // The sum over pairs is |Σ u|² - Σ |u|², with u the unit vectors: linear in time, not quadratic.
        let mut sum = vec![0f64; width];
        let mut own = 0.0;
        for row in sequence.chunks_exact(width) {
            own += add_unit(&mut sum, row);
        }
        total += (sum.iter().map(|x| x * x).sum::<f64>() - own) / (time as f64 * (time as f64 - 1.0));
    }
    if time < 2 { f64::NAN } else { total / batch as f64 }
}

vectorised! {
    /// Adds the unit vector along a row, and says what its own square is: 1, or 0 for a row of zeros.
    fn add_unit(sum: &mut [f64], row: &[f64]) -> f64 {
        let mut square = simd::sum(row, |x| x * x);
        // A square that overflows or vanishes although the row does not is taken relative to the largest number.
        let mut unit = 1.0;
        if !(1e-280..1e280).contains(&square) {
            unit = row.iter().fold(0.0f64, |most, x| if x.abs() > most || x.is_nan() { x.abs() } else { most });
            if unit == 0.0 {
                return 0.0;
            }
            square = row.iter().map(|x| (x / unit) * (x / unit)).sum();
        }
        let factor = 1.0 / square.sqrt();
        let (sum, row) = (&mut sum[..row.len()], row);
        if unit == 1.0 {
            for i in 0..row.len() {
                sum[i] += row[i] * factor;
            }
        } else {
            for i in 0..row.len() {
                sum[i] += row[i] / unit * factor;
            }
        }
        square * factor * factor
    }
}

/// Whether every number is finite.
pub fn is_finite<const D: usize>(tensor: &Tensor<D>) -> bool {
    if flex::is_flex(tensor) {
        let tensor = flex::plain(tensor.clone());
        return for_element!(&tensor, E => {
            flex::slice::<E>(&tensor).iter().all(|x| x.wide().is_finite())
        });
    }
    tensor.clone().into_data().iter::<f64>().all(f64::is_finite)
}

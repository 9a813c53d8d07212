//! What is read off a row of logits.

/// The number of the largest; the first of equals. A NaN is never taken, unless it is first.
pub fn likeliest(logits: &[f64]) -> usize {
    (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best })
}

/// `log(Σ exp(logit))`, what a logit loses to become a log-probability.
pub fn log_total(logits: &[f64]) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln()
}

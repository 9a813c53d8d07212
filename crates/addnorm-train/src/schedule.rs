//! Learning rates over time.

use serde::{Deserialize, Serialize};

/// What follows the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// The peak until the end.
    Constant,
    /// A straight line.
    Linear,
    /// Half a cosine.
    Cosine,
}

/// Linear warm-up to a peak, then a decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The peak.
    pub peak: f64,
    /// Steps of warm-up; the first step is at `peak / warmup`, step `warmup` at the peak.
    pub warmup: u64,
    /// All steps.
    pub steps: u64,
    /// What follows.
    pub decay: Decay,
    /// Where the decay ends, as a share of the peak.
    pub final_share: f64,
}

impl Schedule {
    /// The learning rate of step `step`, from 1.
    pub fn rate(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        // The last step reaches the final share; with one step after the warm-up it stays at the peak.
        let span = self.steps.saturating_sub(self.warmup + 1);
        let progress = if span == 0 { 0.0 } else { ((step - self.warmup - 1) as f64 / span as f64).min(1.0) };
        let share = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - (1.0 - self.final_share) * progress,
            Decay::Cosine => {
                self.final_share + (1.0 - self.final_share) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
        };
        self.peak * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(warmup: u64, steps: u64, decay: Decay) -> Schedule {
        Schedule { peak: 1e-3, warmup, steps, decay, final_share: 0.1 }
    }

    #[test]
    fn t11_warm_up_moves_from_the_first_step() {
        let schedule = schedule(4, 100, Decay::Constant);
        let rates: Vec<f64> = (1..=5).map(|step| schedule.rate(step)).collect();
        assert_eq!(rates, [2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3]);
    }

    #[test]
    fn t12_short_runs_have_finite_rates() {
        for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
            for (warmup, steps) in [(0, 1), (10, 10), (20, 10), (0, 0), (1, 1), (1, 2)] {
                let schedule = schedule(warmup, steps, decay);
                for step in 1..=steps.max(1) {
                    let rate = schedule.rate(step);
                    assert!(rate.is_finite() && rate > 0.0 && rate <= 1e-3, "{warmup} {steps} {step}: {rate}");
                }
            }
        }
    }

    #[test]
    fn decays_end_at_their_final_share() {
        for decay in [Decay::Linear, Decay::Cosine] {
            let schedule = schedule(10, 50, decay);
            assert!((schedule.rate(11) - 1e-3).abs() < 1e-12);
            assert!((schedule.rate(50) - 1e-4).abs() < 1e-12);
        }
    }
}

//! The two number types that the CPU kernels are written for.

use burn::tensor::Element as BurnElement;

/// `f32` or `f64`.
pub(crate) trait Element: BurnElement + bytemuck::Pod + Send + Sync + Default + PartialOrd + 'static
where
    Self: std::ops::Add<Output = Self>
        + std::ops::Sub<Output = Self>
        + std::ops::Mul<Output = Self>
        + std::ops::Div<Output = Self>
        + std::ops::Neg<Output = Self>
        + std::ops::AddAssign
        + std::ops::MulAssign,
{
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    /// Exponential; `fused` says that a product and sum in one rounding are cheap here. `f32`: relative error below 2e-7 in [-87, 88], and e^-87 below; NaN stays NaN.
    fn exp(self, fused: bool) -> Self;
    /// Error function, with `fused` as above. `f32`: absolute error below 4e-7, and exactly -1 and 1 from -4 and 4 on.
    fn erf(self, fused: bool) -> Self;
    /// Square root.
    fn root(self) -> Self;
    /// The one of two slices that is of this type.
    fn either<'a>(narrow: &'a [f32], wide: &'a [f64]) -> &'a [Self];
}

impl Element for f32 {
    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }

    fn either<'a>(narrow: &'a [f32], _: &'a [f64]) -> &'a [Self] {
        narrow
    }

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    /// Range reduction to |r| <= ln(2)/2 and a degree-6 polynomial, without a branch or a call, so that a
    /// loop over it vectorises.
    #[inline(always)]
    fn exp(self, fused: bool) -> Self {
        let add = |a: f32, b: f32, c: f32| if fused { a.mul_add(b, c) } else { a * b + c };
        // Comparisons instead of `max`/`min`: those would turn a NaN into a number.
        let x = if self < -87.0 { -87.0 } else { self };
        let x = if x > 88.0 { 88.0 } else { x };
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves that integer in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let shifted = add(x, std::f32::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        // ln(2) in two parts, so that the reduction is exact enough.
        let r = add(n, 2.121_944_4e-4, add(n, -0.693_359_4, x));
        let mut polynomial = 1.398_2e-3;
        for c in [8.333_452e-3, 4.166_667e-2, 0.166_666_67, 0.5, 1.0, 1.0] {
            polynomial = add(polynomial, r, c);
        }
        let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32).wrapping_add(127);
        f32::from_bits((exponent << 23) as u32) * polynomial
    }

    /// Odd rational minimax approximation on [-4, 4], beyond which erf is 1 to the last bit of `f32`.
    #[inline(always)]
    fn erf(self, fused: bool) -> Self {
        let add = |a: f32, b: f32, c: f32| if fused { a.mul_add(b, c) } else { a * b + c };
        let x = self;
        let s = x * x;
        let mut top = -2.726_142_4e-10;
        for c in [2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_5e-4, -2.954_6e-3, -1.609_603_4e-2] {
            top = add(top, s, c);
        }
        let mut bottom = -1.456_607_2e-5;
        for c in [-2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2] {
            bottom = add(bottom, s, c);
        }
        let y = x * top / bottom;
        // Comparisons that a NaN fails leave it as it is.
        let y = if x >= 4.0 { 1.0 } else { y };
        if x <= -4.0 { -1.0 } else { y }
    }
}

impl Element for f64 {
    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }

    fn either<'a>(_: &'a [f32], wide: &'a [f64]) -> &'a [Self] {
        wide
    }

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp(self, _: bool) -> Self {
        f64::exp(self)
    }

    #[inline(always)]
    fn erf(self, _: bool) -> Self {
        libm::erf(self)
    }
}

#[cfg(test)]
mod tests {
    use super::Element;

    /// With and without a product and sum in one rounding.
    fn both(f: impl Fn(bool) -> f32) -> [f64; 2] {
        [f64::from(f(false)), f64::from(f(true))]
    }

    #[test]
    fn exponential_is_accurate_and_keeps_nan() {
        for i in -8600..=8700 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x).exp();
            let relative = both(|fused| Element::exp(x, fused)).map(|found| (found - exact).abs() / exact);
            assert!(relative.iter().all(|&off| off < 3e-7), "exp({x}) is off by {relative:?}");
        }
        assert!(both(|fused| Element::exp(f32::NAN, fused)).iter().all(|found| found.is_nan()));
        assert!(both(|fused| Element::exp(-1000f32, fused)).iter().all(|&found| found < 2e-38));
    }

    #[test]
    fn error_function_is_accurate_and_keeps_nan() {
        for i in -6000..=6000 {
            let x = i as f32 * 0.001;
            let error = both(|fused| Element::erf(x, fused)).map(|found| (found - libm::erf(f64::from(x))).abs());
            assert!(error.iter().all(|&error| error < 4e-7), "erf({x}) is off by {error:?}");
        }
        assert!(both(|fused| Element::erf(f32::NAN, fused)).iter().all(|found| found.is_nan()));
    }
}

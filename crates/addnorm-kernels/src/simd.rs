//! Choosing between instruction sets when the program runs.

/// Compiles each function for several instruction sets and picks the best one that the processor has, the
/// first time it is called: AVX-512 or AVX2 with FMA on x86-64, else what the build assumes (NEON on
/// AArch64). The bodies hold no intrinsics: they are loops that vectorise, and helpers they call are
/// `#[inline(always)]`, so that these are compiled with the same instructions.
///
/// Outside of matrix products and [`fused`] polynomials, the results are the same bits on every instruction set.
macro_rules! vectorised {
    ($($function:item)*) => {
        $(
            #[multiversion::multiversion(targets(
                "x86_64+avx+avx2+fma+avx512f+avx512bw+avx512cd+avx512dq+avx512vl",
                "x86_64+avx+avx2+fma",
            ))]
            $function
        )*
    };
}
pub(crate) use vectorised;

/// Inside a [`vectorised`] function: whether its instructions have a product and sum in one rounding.
macro_rules! fused {
    () => {
        multiversion::target::target_cfg_f!(target_feature = "fma")
    };
}
pub(crate) use fused;

/// Sums lanes by halves, which takes a few instructions where one after another would wait for each. Written
/// out: a loop over the halves is compiled to one.
#[inline(always)]
pub(crate) fn total<T: Copy + Default + std::ops::Add<Output = T>>(lanes: [T; 16]) -> T {
    let (mut eight, mut four) = ([T::default(); 8], [T::default(); 4]);
    for i in 0..8 {
        eight[i] = lanes[i] + lanes[i + 8];
    }
    for i in 0..4 {
        four[i] = eight[i] + eight[i + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The same of twice as many.
#[inline(always)]
pub(crate) fn total_of_32<T: Copy + Default + std::ops::Add<Output = T>>(lanes: [T; 32]) -> T {
    let mut half = [T::default(); 16];
    for i in 0..16 {
        half[i] = lanes[i] + lanes[i + 16];
    }
    total(half)
}

/// And of twice as many again.
#[inline(always)]
pub(crate) fn total_of_64<T: Copy + Default + std::ops::Add<Output = T>>(lanes: [T; 64]) -> T {
    let mut half = [T::default(); 32];
    for i in 0..32 {
        half[i] = lanes[i] + lanes[i + 32];
    }
    total_of_32(half)
}

/// Independent partial results of the loops below. With 16, some of them are compiled to scalar code.
pub(crate) const LANES: usize = 32;

/// Sum of `term` over a slice, in lanes, in a fixed order.
#[inline(always)]
pub(crate) fn sum<E: Copy, T: Copy + Default + std::ops::AddAssign + std::ops::Add<Output = T>>(
    values: &[E],
    term: impl Fn(E) -> T,
) -> T {
    let mut lanes = [T::default(); LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += term(chunk[lane]);
        }
    }
    let mut sum = total_of_32(lanes);
    for &value in rest {
        sum += term(value);
    }
    sum
}

/// Sum of `term` over two slices of one length, in lanes, in a fixed order.
#[inline(always)]
pub(crate) fn sum_of_pairs<E: Copy, T: Copy + Default + std::ops::AddAssign + std::ops::Add<Output = T>>(
    a: &[E],
    b: &[E],
    term: impl Fn(E, E) -> T,
) -> T {
    let mut lanes = [T::default(); LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += term(a[lane], b[lane]);
        }
    }
    let mut sum = total_of_32(lanes);
    for (&a, &b) in a_rest.iter().zip(b_rest) {
        sum += term(a, b);
    }
    sum
}

/// The largest of some numbers; the first if there is no other. A NaN loses every comparison, unless it is first.
#[inline(always)]
pub(crate) fn largest<E: Copy + PartialOrd>(values: &[E]) -> E {
    let mut lanes = [values[0]; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    for half in [16, 8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] = if lanes[lane + half] > lanes[lane] { lanes[lane + half] } else { lanes[lane] };
        }
    }
    let mut most = lanes[0];
    for &value in rest {
        most = if value > most { value } else { most };
    }
    most
}

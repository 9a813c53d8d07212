//! Choosing between instruction sets when the program runs.

/// Compiles each function for several instruction sets and picks the best one that the processor has, the
/// first time it is called: AVX-512 or AVX2 with FMA on x86-64, else what the build assumes (NEON on
/// AArch64). The bodies hold no intrinsics: they are loops that vectorise, and helpers they call are
/// `#[inline(always)]`, so that these are compiled with the same instructions.
///
/// No product and sum is contracted into one rounding, so outside of matrix products the results are the
/// same bits on every instruction set.
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

/// Sums lanes by halves, which takes a few instructions where one after another would wait for each.
#[inline(always)]
pub(crate) fn total<T: Copy + std::ops::Add<Output = T>>(mut lanes: [T; 16]) -> T {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] = lanes[lane] + lanes[lane + half];
        }
    }
    lanes[0]
}

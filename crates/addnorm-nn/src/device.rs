//! Where tensors live.

use burn::tensor::Device;

/// A device that this build or this machine does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no device '{said}': {hint}")]
pub struct DeviceError {
    /// What was asked for.
    pub said: String,
    /// What there is.
    pub hint: String,
}

/// `flex`, `cuda`, `cuda:N` or `wgpu`; the last two only in a build with the feature of that name.
///
/// # Errors
/// If the name is unknown or the build has no such device.
pub fn device(said: &str) -> Result<Device, DeviceError> {
    let fail = |hint: &str| Err(DeviceError { said: said.to_string(), hint: hint.to_string() });
    match said.split_once(':').unwrap_or((said, "")) {
        ("flex", "") => Ok(Device::flex()),
        #[cfg(feature = "cuda")]
        ("cuda", number) => match if number.is_empty() { Ok(0) } else { number.parse::<usize>() } {
            Ok(number) => Ok(Device::cuda(number)),
            Err(_) => fail("write 'cuda' or 'cuda:0'"),
        },
        #[cfg(not(feature = "cuda"))]
        ("cuda", _) => fail("this build has no CUDA; build with '--features cuda'"),
        #[cfg(feature = "wgpu")]
        ("wgpu", "") => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(not(feature = "wgpu"))]
        ("wgpu", "") => fail("this build has no wgpu; build with '--features wgpu'"),
        _ => fail("known are 'flex' (the CPU), 'cuda:N' and 'wgpu'"),
    }
}

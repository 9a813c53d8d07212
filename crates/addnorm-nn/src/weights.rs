//! The numbers of a model.

use std::collections::BTreeMap;
use std::path::Path;

use addnorm_scheme::Initializer;
use burn::tensor::{DType, Device, Tensor, TensorData};
use rand_distr::{Distribution, Normal, Uniform};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::layout::{InitialValue, ParameterInfo};
use crate::random::{Purpose, stream};

/// One parameter's tensor.
#[derive(Debug, Clone)]
pub enum Weight {
    /// A gain, a bias, a learnable.
    Vector(Tensor<1>),
    /// A matrix or a table.
    Matrix(Tensor<2>),
}

impl Weight {
    /// Makes one from numbers in row-major order.
    pub fn from_values(values: Vec<f64>, shape: &[usize], device: &Device, dtype: DType) -> Self {
        match *shape {
            [rows, columns] => {
                Weight::Matrix(Tensor::from_data(TensorData::new(values, [rows, columns]), (device, dtype)))
            }
            _ => {
                let length = values.len();
                Weight::Vector(Tensor::from_data(TensorData::new(values, [length]), (device, dtype)))
            }
        }
    }

    /// Makes one where this one is, of its number type.
    pub(crate) fn beside(&self, values: Vec<f64>, shape: &[usize]) -> Self {
        let (device, dtype) = match self {
            Weight::Vector(tensor) => (tensor.device(), tensor.dtype()),
            Weight::Matrix(tensor) => (tensor.device(), tensor.dtype()),
        };
        Weight::from_values(values, shape, &device, dtype)
    }

    /// The numbers in row-major order.
    pub fn to_values(&self) -> Vec<f64> {
        match self {
            Weight::Vector(tensor) => addnorm_kernels::statistics::to_f64(tensor),
            Weight::Matrix(tensor) => addnorm_kernels::statistics::to_f64(tensor),
        }
    }

    /// Sum of the squares of its numbers, in `f64`. NaN and infinity come through.
    pub fn sum_of_squares(&self) -> f64 {
        match self {
            Weight::Vector(tensor) => addnorm_kernels::sum_of_squares(tensor),
            Weight::Matrix(tensor) => addnorm_kernels::sum_of_squares(tensor),
        }
    }

    /// All its numbers in one row, without a copy.
    pub fn flat(&self) -> Tensor<1> {
        self.clone().into_flat()
    }

    /// All its numbers in one row, without a copy.
    pub fn into_flat(self) -> Tensor<1> {
        match self {
            Weight::Vector(tensor) => tensor,
            Weight::Matrix(tensor) => {
                let [rows, columns] = tensor.dims();
                tensor.reshape([rows * columns])
            }
        }
    }

    /// The reverse of [`into_flat`](Weight::into_flat).
    pub fn from_flat(tensor: Tensor<1>, shape: &[usize]) -> Self {
        match *shape {
            [rows, columns] => Weight::Matrix(tensor.reshape([rows, columns])),
            _ => Weight::Vector(tensor),
        }
    }

    /// Its sizes.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Weight::Vector(tensor) => tensor.dims().to_vec(),
            Weight::Matrix(tensor) => tensor.dims().to_vec(),
        }
    }

    /// The sum of two of one shape.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn plus(self, other: Weight) -> Self {
        match (self, other) {
            (Weight::Vector(sum), Weight::Vector(part)) => Weight::Vector(sum + part),
            (Weight::Matrix(sum), Weight::Matrix(part)) => Weight::Matrix(sum + part),
            _ => panic!("a vector and a matrix have no sum"),
        }
    }

    /// A leaf of its own in a fresh graph.
    pub(crate) fn tracked(&self) -> Self {
        match self {
            Weight::Vector(tensor) => Weight::Vector(tensor.clone().autodiff().require_grad()),
            Weight::Matrix(tensor) => Weight::Matrix(tensor.clone().autodiff().require_grad()),
        }
    }

    pub(crate) fn vector(&self) -> Tensor<1> {
        match self {
            Weight::Vector(tensor) => tensor.clone(),
            Weight::Matrix(_) => unreachable!("the layout says that this parameter is a vector"),
        }
    }

    pub(crate) fn matrix(&self) -> Tensor<2> {
        match self {
            Weight::Matrix(tensor) => tensor.clone(),
            Weight::Vector(_) => unreachable!("the layout says that this parameter is a matrix"),
        }
    }
}

/// The tensors of all parameters, in the order of the model's list.
#[derive(Debug, Clone)]
pub struct Weights(pub Vec<Weight>);

/// Weights that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The file system's word.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What happened.
        reason: String,
    },
    /// The file does not hold this model's weights.
    #[error("{path} does not hold this model's weights: {reason}")]
    Mismatch {
        /// The file.
        path: String,
        /// The first difference.
        reason: String,
    },
}

impl Weights {
    /// Draws every parameter. Each has a random stream of its own, by its name: the same matrix starts from
    /// the same draws in every scheme, scaled as the scheme says.
    pub fn initialise(parameters: &[ParameterInfo], seed: u64, device: &Device, dtype: DType) -> Self {
        let draw = |info: &ParameterInfo| {
            let count = info.elements();
            let values = match info.initial {
                InitialValue::Constant(value) => vec![value; count],
                InitialValue::Random(initializer) => {
                    let mut random = stream(seed, Purpose::Initialisation, &info.name);
                    let normal = Normal::new(0.0, 1.0).expect("a unit normal is valid");
                    let uniform = Uniform::new(-1.0, 1.0).expect("a unit interval is valid");
                    let mut one = || match initializer {
                        Initializer::Normal { std } => std * normal.sample(&mut random),
                        Initializer::Uniform { bound } => bound * uniform.sample(&mut random),
                        Initializer::TruncatedNormal { std, cut } => {
                            let mut z: f64 = normal.sample(&mut random);
                            // A cut so narrow that nothing falls within it would never end.
                            for _ in 0..1000 {
                                if z.abs() <= cut {
                                    break;
                                }
                                z = normal.sample(&mut random);
                            }
                            std * z.clamp(-cut.abs(), cut.abs())
                        }
                    };
                    (0..count).map(|_| one()).collect()
                }
            };
            Weight::from_values(values, &info.shape, device, dtype)
        };
        Weights(parameters.iter().map(draw).collect())
    }

    /// Writes them as safetensors in `f32`, with `metadata` in the header. The file appears whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(
        &self,
        parameters: &[ParameterInfo],
        metadata: BTreeMap<String, String>,
        path: &Path,
    ) -> Result<(), WeightsError> {
        let fail = |reason: String| WeightsError::File { path: path.display().to_string(), reason };
        let bytes: Vec<Vec<u8>> = self
            .0
            .iter()
            .map(|weight| weight.to_values().iter().flat_map(|&value| (value as f32).to_le_bytes()).collect())
            .collect();
        let views = parameters
            .iter()
            .zip(&bytes)
            .map(|(info, bytes)| {
                TensorView::new(Dtype::F32, info.shape.clone(), bytes)
                    .map(|view| (info.name.clone(), view))
                    .map_err(|error| fail(error.to_string()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let metadata = metadata.into_iter().collect();
        let partial = path.with_extension("safetensors.partial");
        safetensors::serialize_to_file(views, Some(metadata), &partial).map_err(|error| fail(error.to_string()))?;
        std::fs::rename(&partial, path).map_err(|error| fail(error.to_string()))
    }

    /// Reads what [`save`](Weights::save) wrote. Every parameter must be there in its shape, and nothing else.
    ///
    /// # Errors
    /// If the file cannot be read or holds something else.
    pub fn load(parameters: &[ParameterInfo], path: &Path, device: &Device) -> Result<Self, WeightsError> {
        let file = || path.display().to_string();
        let bytes =
            std::fs::read(path).map_err(|error| WeightsError::File { path: file(), reason: error.to_string() })?;
        let mismatch = |reason: String| WeightsError::Mismatch { path: file(), reason };
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| mismatch(error.to_string()))?;
        if let Some(extra) = tensors.names().iter().find(|name| !parameters.iter().any(|info| info.name == **name)) {
            return Err(mismatch(format!("it has '{extra}', which the model does not")));
        }
        let read = |info: &ParameterInfo| {
            let view = tensors.tensor(&info.name).map_err(|_| mismatch(format!("'{}' is missing", info.name)))?;
            if view.shape() != info.shape || view.dtype() != Dtype::F32 {
                let found = format!("{:?} {:?}", view.dtype(), view.shape());
                return Err(mismatch(format!("'{}' is {found}, not F32 {:?}", info.name, info.shape)));
            }
            let values =
                view.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
            Ok(Weight::from_values(values, &info.shape, device, DType::F32))
        };
        Ok(Weights(parameters.iter().map(read).collect::<Result<_, _>>()?))
    }
}

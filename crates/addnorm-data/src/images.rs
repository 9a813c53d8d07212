//! Labelled images.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::corpus::{CorpusSummary, DataConfig, DataError, hexadecimal, unigram_entropy, validation_count};

/// Images that are made without files.
const MOST_BUILTIN: usize = 20_000;

/// Height and width of a built-in image.
const BUILTIN_SIDE: usize = 28;

/// Classes of built-in images.
const BUILTIN_CLASSES: u32 = 10;

/// Square images of one size with their classes.
#[derive(Debug, Clone, Default)]
pub struct ImageSet {
    /// `count * side * side` numbers.
    pub pixels: Vec<f32>,
    /// The class of each.
    pub labels: Vec<u32>,
}

/// Images to train on and images to validate on.
#[derive(Debug, Clone)]
pub struct Images {
    /// To train on.
    pub training: ImageSet,
    /// To validate on.
    pub validation: ImageSet,
    /// Height and width in pixels.
    pub side: usize,
    /// Classes.
    pub classes: usize,
    /// What is known; an image counts as one token.
    pub summary: CorpusSummary,
}

impl Images {
    /// Reads or makes images. Pixels are shifted and scaled to mean 0 and standard deviation 1 over the training
    /// part. Files are IDX, as the MNIST family ships it, plain or gzipped, or CSV with the label in the last
    /// column. IDX files whose names begin with `t10k` or `test` are the validation part.
    ///
    /// # Errors
    /// If something cannot be read or is no set of square images.
    pub fn load(config: &DataConfig) -> Result<Self, DataError> {
        config.check()?;
        let (mut training, mut validation, side, description) = if config.paths.is_empty() {
            let count = (config.builtin_tokens / 100).clamp(20, MOST_BUILTIN);
            let all = builtin(count, config.builtin_seed);
            let (training, validation) = split(all, BUILTIN_SIDE, config.validation);
            (training, validation, BUILTIN_SIDE, "the built-in images".to_string())
        } else {
            let (training, validation, side) = read(&config.paths)?;
            let names: Vec<String> = config.paths.iter().map(|path| path.display().to_string()).collect();
            let (training, validation) = match validation {
                Some(validation) => (training, validation),
                None => split(training, side, config.validation),
            };
            (training, validation, side, names.join(", "))
        };
        for (part, set) in [("training", &training), ("validation", &validation)] {
            if set.labels.is_empty() {
                return Err(DataError::Empty(format!("the {part} part has no image")));
            }
        }
        let count = training.pixels.len() as f64;
        let mean = training.pixels.iter().map(|&pixel| f64::from(pixel)).sum::<f64>() / count;
        let variance = training.pixels.iter().map(|&pixel| (f64::from(pixel) - mean).powi(2)).sum::<f64>() / count;
        let scale = if variance > 0.0 { 1.0 / variance.sqrt() } else { 1.0 };
        let mut hasher = Sha256::new();
        for set in [&mut training, &mut validation] {
            set.pixels.iter_mut().for_each(|pixel| *pixel = ((f64::from(*pixel) - mean) * scale) as f32);
            set.pixels.iter().for_each(|pixel| hasher.update(pixel.to_le_bytes()));
            set.labels.iter().for_each(|label| hasher.update(label.to_le_bytes()));
        }
        let classes = training.labels.iter().chain(&validation.labels).max().map_or(0, |&most| most as usize + 1);
        let summary = CorpusSummary {
            description: format!(
                "{description} ({} images of {side} x {side})",
                training.labels.len() + validation.labels.len()
            ),
            sha256: hexadecimal(hasher),
            training_tokens: training.labels.len(),
            validation_tokens: validation.labels.len(),
            vocabulary: classes,
            unigram_entropy: unigram_entropy(&training.labels, &validation.labels, classes),
            floor: None,
            bytes_per_token: None,
            text: None,
        };
        Ok(Images { training, validation, side, classes, summary })
    }

    /// Images of `set` by number as rows of patches: for each image, patch after patch in reading order, each
    /// patch's pixels in reading order.
    ///
    /// # Panics
    /// If patches do not fill an image.
    pub fn patches(&self, set: &ImageSet, numbers: &[usize], patch: usize) -> Vec<f32> {
        let side = self.side;
        assert!(patch > 0 && side.is_multiple_of(patch), "patches fill an image");
        let mut values = Vec::with_capacity(numbers.len() * side * side);
        for &number in numbers {
            let image = &set.pixels[number * side * side..][..side * side];
            for top in (0..side).step_by(patch) {
                for left in (0..side).step_by(patch) {
                    for row in top..top + patch {
                        values.extend_from_slice(&image[row * side + left..][..patch]);
                    }
                }
            }
        }
        values
    }
}

fn split(all: ImageSet, side: usize, share: f64) -> (ImageSet, ImageSet) {
    let first = all.labels.len() - validation_count(all.labels.len(), share);
    let (a, b) = all.pixels.split_at(first * side * side);
    let (la, lb) = all.labels.split_at(first);
    (ImageSet { pixels: a.to_vec(), labels: la.to_vec() }, ImageSet { pixels: b.to_vec(), labels: lb.to_vec() })
}

fn bad(path: &Path, message: impl std::fmt::Display) -> DataError {
    DataError::Empty(format!("{}: {message}", path.display()))
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, DataError> {
    let bytes = std::fs::read(path).map_err(|error| DataError::unreadable(path, &error))?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(bytes.as_slice()).read_to_end(&mut plain);
    read.map_err(|error| bad(path, format!("the gzip stream is broken: {error}")))?;
    Ok(plain)
}

/// Training images, validation images where the files say which they are, and the side.
fn read(paths: &[PathBuf]) -> Result<(ImageSet, Option<ImageSet>, usize), DataError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(|error| DataError::unreadable(path, &error))?;
            let mut found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            found.sort();
            files.extend(found.into_iter().filter(|file| file.is_file()));
        } else {
            files.push(path.clone());
        }
    }
    let is_csv = |path: &PathBuf| name_of(path).trim_end_matches(".gz").ends_with(".csv");
    let is_test = |path: &PathBuf| name_of(path).starts_with("t10k") || name_of(path).starts_with("test");
    let (tables, files): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(is_csv);
    if !tables.is_empty() {
        let (test, train): (Vec<PathBuf>, Vec<PathBuf>) = tables.into_iter().partition(is_test);
        let (Some(table), true) = (train.first().or(test.first()), train.len() < 2 && test.len() < 2) else {
            let all = train.len() + test.len();
            return Err(bad(
                &paths[0],
                format!("{all} CSV files are here; one is read, and one whose name begins with 'test'"),
            ));
        };
        let (training, side) = read_csv(table)?;
        if train.is_empty() || test.is_empty() {
            return Ok((training, None, side));
        }
        let (validation, other) = read_csv(&test[0])?;
        if other != side {
            return Err(bad(&test[0], format!("its images are {other} pixels wide, and those to train on {side}")));
        }
        return Ok((training, Some(validation), side));
    }
    let (test, train): (Vec<PathBuf>, Vec<PathBuf>) =
        files.into_iter().filter(|path| name_of(path).contains("ubyte")).partition(is_test);
    if train.is_empty() && test.is_empty() {
        return Err(bad(&paths[0], "no IDX files (named ...-ubyte or ...-ubyte.gz) and no CSV file are here"));
    }
    let (training, side) = read_idx(if train.is_empty() { &test } else { &train })?;
    if train.is_empty() || test.is_empty() {
        return Ok((training, None, side));
    }
    let (validation, other) = read_idx(&test)?;
    if other != side {
        return Err(bad(&test[0], format!("its images are {other} pixels wide, and those to train on {side}")));
    }
    Ok((training, Some(validation), side))
}

/// The sizes in an IDX header, and where the data starts.
fn idx_header(path: &Path, bytes: &[u8], dimensions: usize) -> Result<(Vec<usize>, usize), DataError> {
    let start = 4 + 4 * dimensions;
    if bytes.len() < start || bytes[..2] != [0, 0] || bytes[2] != 8 || bytes[3] as usize != dimensions {
        return Err(bad(path, format!("no IDX file of bytes in {dimensions} dimensions")));
    }
    let size = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
    let sizes: Vec<usize> = (0..dimensions).map(|number| size(4 + 4 * number)).collect();
    let wanted = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    if wanted != Some(bytes.len() - start) {
        return Err(bad(path, format!("the header says {sizes:?}, and {} bytes follow", bytes.len() - start)));
    }
    Ok((sizes, start))
}

fn read_idx(files: &[PathBuf]) -> Result<(ImageSet, usize), DataError> {
    if files.len() > 2 {
        return Err(bad(&files[0], format!("{} IDX files are here, and images and labels are two", files.len())));
    }
    let find = |kind: &str| files.iter().find(|path| name_of(path).contains(kind));
    let (Some(images), Some(labels)) = (find("images"), find("labels")) else {
        return Err(bad(&files[0], "images and labels are a pair of files, and one of them is missing"));
    };
    let (image_bytes, label_bytes) = (bytes_of(images)?, bytes_of(labels)?);
    let (sizes, start) = idx_header(images, &image_bytes, 3)?;
    let (counts, label_start) = idx_header(labels, &label_bytes, 1)?;
    if sizes[0] != counts[0] {
        return Err(bad(labels, format!("{} labels for {} images", counts[0], sizes[0])));
    }
    if sizes[1] != sizes[2] || sizes[1] == 0 {
        return Err(bad(images, format!("images are square here, not {} x {}", sizes[1], sizes[2])));
    }
    let pixels = image_bytes[start..].iter().map(|&byte| f32::from(byte)).collect();
    let labels = label_bytes[label_start..].iter().map(|&byte| u32::from(byte)).collect();
    Ok((ImageSet { pixels, labels }, sizes[1]))
}

fn read_csv(path: &Path) -> Result<(ImageSet, usize), DataError> {
    let bytes = bytes_of(path)?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(bytes.as_slice());
    let mut set = ImageSet::default();
    let mut side = 0usize;
    for (number, record) in reader.records().enumerate() {
        let record = record.map_err(|error| bad(path, error))?;
        let values: Result<Vec<f64>, _> = record.iter().map(|field| field.trim().parse::<f64>()).collect();
        let values = match values {
            Ok(values) => values,
            // Names of columns may stand first.
            Err(_) if number == 0 => continue,
            Err(error) => return Err(bad(path, format!("line {}: {error}", number + 1))),
        };
        if values.iter().any(|value| !value.is_finite()) {
            return Err(bad(path, format!("line {}: a value is not a finite number", number + 1)));
        }
        let Some((&label, pixels)) = values.split_last() else { continue };
        let root = (pixels.len() as f64).sqrt() as usize;
        if root * root != pixels.len() || root == 0 {
            return Err(bad(path, format!("line {}: {} pixels make no square image", number + 1, pixels.len())));
        }
        if side == 0 {
            side = root;
        }
        if root != side {
            return Err(bad(path, format!("line {}: another size than the lines before", number + 1)));
        }
        if label < 0.0 || label.fract() != 0.0 || label > 1e6 {
            return Err(bad(path, format!("line {}: the last column, {label}, is no class", number + 1)));
        }
        set.pixels.extend(pixels.iter().map(|&pixel| pixel as f32));
        set.labels.push(label as u32);
    }
    Ok((set, side))
}

/// Gratings under noise: the class is the direction of the stripes, in steps of 18 degrees; their phase and
/// width are free.
fn builtin(count: usize, seed: u64) -> ImageSet {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut set = ImageSet::default();
    for _ in 0..count {
        let class = random.random_range(0..BUILTIN_CLASSES);
        let angle = std::f64::consts::PI * f64::from(class) / f64::from(BUILTIN_CLASSES);
        let (phase, wave) = (random.random::<f64>() * std::f64::consts::TAU, 4.0 + 4.0 * random.random::<f64>());
        for y in 0..BUILTIN_SIDE {
            for x in 0..BUILTIN_SIDE {
                let along = x as f64 * angle.cos() + y as f64 * angle.sin();
                let noise: f64 = (0..4).map(|_| random.random::<f64>() - 0.5).sum();
                set.pixels.push(((along * std::f64::consts::TAU / wave + phase).sin() + 1.5 * noise) as f32);
            }
        }
        set.labels.push(class);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idx_pair_is_read_plain_and_zipped_and_a_wrong_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let images: Vec<u8> = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 1, 2, 3, 4, 5, 6, 7].to_vec();
        let labels: Vec<u8> = [0, 0, 8, 1, 0, 0, 0, 2, 1, 0].to_vec();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("train-images-idx3-ubyte", &images);
        write("train-labels-idx1-ubyte", &labels);
        let (set, validation, side) = read(&[folder.path().to_path_buf()]).unwrap();
        assert_eq!((set.pixels, set.labels, side), ((0..8).map(|at| at as f32).collect(), vec![1, 0], 2));
        assert!(validation.is_none());
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zipped, &labels).unwrap();
        write("t10k-labels-idx1-ubyte.gz", &zipped.finish().unwrap());
        write("t10k-images-idx3-ubyte", &images);
        let (_, validation, _) = read(&[folder.path().to_path_buf()]).unwrap();
        assert_eq!(validation.unwrap().labels, [1, 0]);
        write("train-images-idx3-ubyte", &images[..images.len() - 1]);
        let error = read(&[folder.path().to_path_buf()]).unwrap_err().to_string();
        assert!(error.contains("the header says [2, 2, 2], and 7 bytes follow"), "{error}");
    }

    #[test]
    fn a_csv_has_its_label_last_and_may_have_a_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("digits.csv");
        std::fs::write(&path, "a,b,c,d,label\n0,1,2,3,7\n4,5,6,7,1\n").unwrap();
        let (set, _, side) = read(&[path]).unwrap();
        assert_eq!((set.labels, side, set.pixels.len()), (vec![7, 1], 2, 8));
    }

    #[test]
    fn patches_stand_in_reading_order() {
        let config = DataConfig { builtin_tokens: 1, ..DataConfig::default() };
        let mut images = Images::load(&config).unwrap();
        images.side = 4;
        let set = ImageSet { pixels: (0..16).map(|at| at as f32).collect(), labels: vec![0] };
        let patches = images.patches(&set, &[0], 2);
        assert_eq!(patches, [0., 1., 4., 5., 2., 3., 6., 7., 8., 9., 12., 13., 10., 11., 14., 15.]);
    }
}

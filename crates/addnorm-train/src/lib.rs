//! addnorm-train

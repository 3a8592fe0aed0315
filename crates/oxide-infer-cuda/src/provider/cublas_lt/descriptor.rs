//! The library's descriptors, each destroyed once.

use super::library::{Calls, check};
use super::product::{Matrix, Product, workspace_preference};
use crate::driver::LibraryError;
use cudarc::cublaslt::sys;
use std::ffi::c_void;
use std::ptr;

macro_rules! descriptors {
    ($($(#[$doc:meta])* $name:ident($raw:ty, $destroy:ident);)*) => {
        $($(#[$doc])*
        pub(super) struct $name {
            calls: Calls,
            raw: $raw,
        }

        impl $name {
            pub(super) fn raw(&self) -> $raw {
                self.raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: created once, destroyed once. It is host memory, which no work in flight reads.
                let _ = unsafe { (self.calls.$destroy)(self.raw) };
            }
        }

        // SAFETY: host memory that is written before it is shared and only read after.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {})*
    };
}

descriptors! {
    /// What is computed: transpositions, epilogue, the bias's address.
    Operation(sys::cublasLtMatmulDesc_t, desc_destroy);
    /// How a matrix lies in memory.
    Layout(sys::cublasLtMatrixLayout_t, layout_destroy);
    /// Which algorithms are admitted.
    Preference(sys::cublasLtMatmulPreference_t, preference_destroy);
}

impl Operation {
    /// Of a product; `bias` is the address of one that it has.
    pub(super) fn new(calls: Calls, product: &Product, bias: Option<u64>) -> Result<Self, LibraryError> {
        let mut raw = ptr::null_mut();
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F as u32;
        let scale = sys::cudaDataType_t::CUDA_R_32F as u32;
        // SAFETY: an out-parameter of the library's own type.
        check("cublasLtMatmulDescCreate", unsafe { (calls.desc_create)(&mut raw, compute, scale) })?;
        let operation = Self { calls, raw };
        for (name, value) in product.attributes() {
            operation.set(name as u32, &value)?;
        }
        if let Some(address) = bias {
            let name = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            operation.set(name as u32, &address)?;
        }
        Ok(operation)
    }

    fn set<T>(&self, name: u32, value: &T) -> Result<(), LibraryError> {
        // SAFETY: the library copies as many bytes as it is told, and refuses a number of bytes that the attribute has not.
        let status = unsafe { (self.calls.desc_set)(self.raw, name, bytes(value), size_of::<T>()) };
        check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Layout {
    pub(super) fn new(calls: Calls, matrix: Matrix) -> Result<Self, LibraryError> {
        let Matrix { data_type, rows, columns, leading } = matrix;
        let mut raw = ptr::null_mut();
        // SAFETY: an out-parameter of the library's own type.
        let status = unsafe { (calls.layout_create)(&mut raw, data_type, rows, columns, leading) };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Self { calls, raw })
    }
}

impl Preference {
    pub(super) fn new(calls: Calls) -> Result<Self, LibraryError> {
        let mut raw = ptr::null_mut();
        // SAFETY: an out-parameter of the library's own type.
        check("cublasLtMatmulPreferenceCreate", unsafe { (calls.preference_create)(&mut raw) })?;
        let preference = Self { calls, raw };
        let (name, value) = workspace_preference();
        preference.set(name as u32, &value)?;
        for (name, value) in Product::preferences() {
            preference.set(name as u32, &value)?;
        }
        Ok(preference)
    }

    fn set<T>(&self, name: u32, value: &T) -> Result<(), LibraryError> {
        // SAFETY: as for `Operation::set`.
        let status = unsafe { (self.calls.preference_set)(self.raw, name, bytes(value), size_of::<T>()) };
        check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

fn bytes<T>(value: &T) -> *const c_void {
    ptr::from_ref(value).cast()
}

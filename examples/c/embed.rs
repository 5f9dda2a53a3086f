//! The same as embed.c for one sentence, in Rust: embed_rs build/minilm.safetensors 101 7592 102
//!
//! rustc embed.rs -L build -l minilm

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

/// smelt_tensor: elements in memory.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    dtype: c_int,
    ndim: i32,
    sizes: *const i64,
    strides: *const i64,
}

const I64: c_int = 4;

extern "C" {
    static minilm_program: c_void;
    fn smelt_error() -> *const c_char;
    fn smelt_open(program: *const c_void, weights: *const c_char, flags: c_int, model: *mut *mut c_void) -> c_int;
    fn smelt_close(model: *mut c_void);
    fn smelt_context_new(model: *mut c_void, context: *mut *mut c_void) -> c_int;
    fn smelt_context_free(context: *mut c_void);
    fn smelt_call(
        context: *mut c_void, entry: i32, inputs: *const Tensor, ninputs: i32, outputs: *mut Tensor, noutputs: i32,
    ) -> c_int;
}

fn checked(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(smelt_error()) }.to_string_lossy().into_owned())
}

/// A program with its weights, which any number of threads may use.
struct Model(*mut c_void);
unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Model {
    fn open(weights: &str) -> Result<Model, String> {
        let path = CString::new(weights).map_err(|error| error.to_string())?;
        let mut found = null_mut();
        checked(unsafe { smelt_open(&raw const minilm_program, path.as_ptr(), 0, &mut found) })?;
        Ok(Model(found))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { smelt_close(self.0) }
    }
}

/// State and working memory: one thread at a time. It cannot outlive its model.
struct Context<'a>(*mut c_void, std::marker::PhantomData<&'a Model>);

impl<'a> Context<'a> {
    fn new(model: &'a Model) -> Result<Context<'a>, String> {
        let mut found = null_mut();
        checked(unsafe { smelt_context_new(model.0, &mut found) })?;
        Ok(Context(found, std::marker::PhantomData))
    }

    /// The embedding; it lasts until the context's next call, which the borrow says.
    fn embed(&mut self, ids: &[i64], mask: &[i64]) -> Result<&[f32], String> {
        let sizes = [1i64, ids.len() as i64];
        let lend = |data: &[i64]| Tensor {
            data: data.as_ptr() as *mut c_void, dtype: I64, ndim: 2, sizes: sizes.as_ptr(), strides: null(),
        };
        let inputs = [lend(ids), lend(mask)];
        let mut output = Tensor { data: null_mut(), dtype: 0, ndim: 0, sizes: null(), strides: null() };
        checked(unsafe { smelt_call(self.0, 0, inputs.as_ptr(), 2, &mut output, 1) })?;
        Ok(unsafe { std::slice::from_raw_parts(output.data as *const f32, 384) })
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        unsafe { smelt_context_free(self.0) }
    }
}

fn run() -> Result<(), String> {
    let given: Vec<String> = std::env::args().collect();
    if given.len() < 3 || given.len() > 66 {
        return Err(format!("usage: {} minilm.safetensors TOKEN...", given[0]));
    }
    let mut ids = Vec::new();
    for text in &given[2..] {
        ids.push(text.parse::<i64>().map_err(|error| format!("{text}: {error}"))?);
    }
    let mask = vec![1i64; ids.len()];
    let model = Model::open(&given[1])?;
    let mut context = Context::new(&model)?;
    for value in &context.embed(&ids, &mask)?[..4] {
        println!("{value:.6}");
    }
    Ok(())
}

fn main() {
    if let Err(text) = run() {
        eprintln!("{text}");
        std::process::exit(1);
    }
}

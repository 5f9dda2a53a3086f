// The same as embed.c for one sentence, in Go: embed_go build/minilm.safetensors 101 7592 102
//
// CGO_CFLAGS="-I$PWD/build" CGO_LDFLAGS="-L$PWD/build -lminilm" go build -o embed_go embed.go
package main

/*
#include <stdlib.h>
#include "minilm.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"
)

// call runs f and gives its failure's text: errors belong to the thread, which Go must not change in between.
func call(f func() C.smelt_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if f() != C.SMELT_OK {
		return errors.New(C.GoString(C.smelt_error()))
	}
	return nil
}

func embed(weights string, ids, mask []C.int64_t) ([]float32, error) {
	path := C.CString(weights)
	defer C.free(unsafe.Pointer(path))
	var model *C.smelt_model
	if err := call(func() C.smelt_status { return C.smelt_open(&C.minilm_program, path, 0, &model) }); err != nil {
		return nil, err
	}
	defer C.smelt_close(model)
	var context *C.smelt_context
	if err := call(func() C.smelt_status { return C.smelt_context_new(model, &context) }); err != nil {
		return nil, err
	}
	defer C.smelt_context_free(context)
	var result C.minilm_forward_result
	tokens := C.int64_t(len(ids))
	err := call(func() C.smelt_status { return C.minilm_forward(context, tokens, &ids[0], &mask[0], &result) })
	if err != nil {
		return nil, err
	}
	found := unsafe.Slice((*float32)(unsafe.Pointer(result.out)), 384)
	return append([]float32(nil), found...), nil
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 66 {
		fmt.Fprintf(os.Stderr, "usage: %s minilm.safetensors TOKEN...\n", os.Args[0])
		os.Exit(2)
	}
	var ids, mask []C.int64_t
	for _, text := range os.Args[2:] {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		ids, mask = append(ids, C.int64_t(id)), append(mask, 1)
	}
	embedding, err := embed(os.Args[1], ids, mask)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, value := range embedding[:4] {
		fmt.Printf("%.6f\n", value)
	}
}

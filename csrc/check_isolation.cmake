# Fails if an object that was compiled for one ISA defines a symbol that others may share.
#
# The linker keeps one copy of an inline function or template instance of the same name. If that copy
# came from an object compiled for AVX-512, code for every CPU would call it.
#   cmake -DNM=... -DOBJECTS=... -P check_isolation.cmake
execute_process(COMMAND ${NM} -C --defined-only ${OBJECTS}
                OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} failed")
endif()
string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
list(FILTER shared EXCLUDE REGEX "vllm::isa_")
if(shared)
  list(JOIN shared "\n" shared)
  message(FATAL_ERROR "Kernel objects share these symbols between ISAs:\n${shared}")
endif()

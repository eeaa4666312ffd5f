# Installs the build into an empty prefix, then configures, builds and runs a project that only knows the prefix.
set(prefix ${BUILD_FOLDER}/install-test/prefix)
set(consumer ${BUILD_FOLDER}/install-test/consumer)
file(REMOVE_RECURSE ${BUILD_FOLDER}/install-test)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nfailed with ${code}:\n${output}")
  endif()
endfunction()

step(${CMAKE_COMMAND} --install ${BUILD_FOLDER} --prefix ${prefix})
set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
step(${CMAKE_COMMAND} -S ${SOURCE_FOLDER} -B ${consumer} -G Ninja -D CMAKE_PREFIX_PATH=${prefix}
     -D CMAKE_CXX_FLAGS=${flags})
step(${CMAKE_COMMAND} --build ${consumer})
step(${consumer}/consumer)
step(${consumer}/plan_and_train ${BUILD_FOLDER}/install-test/run)
step(${prefix}/bin/headroom --version)
